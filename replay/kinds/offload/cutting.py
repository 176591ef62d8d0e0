"""Which other groups a deletion would cut: DeleteRecords deletes for every group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backlog.errors import Refused
from backlog.kafka.readers import TopicReaders
from backlog.numbers import format_plural
from backlogctl_delivery.visible import quote_word
from replay.kinds.offload.options import ALLOW_OTHERS, ALLOW_UNKNOWN
from replay.kinds.offload.plan import CutGroup


def find_cut_groups(
    readers: TopicReaders, group: str, lows: Mapping[int, int], fence: Mapping[int, int]
) -> tuple[CutGroup, ...]:
    """The other groups that have not read all below the fence, and what each would lose.

    Where a group has no commit it may read from the log's start: `auto.offset.reset` is its own.
    Of a share group at most what it has not acknowledged: its start may lag behind that.
    """
    found = []
    for name, commits in readers.known.items():
        stands = {n: max(commits.get(n, 0), lows.get(n, 0)) for n in fence}
        below = {n: fence[n] - at for n, at in stands.items() if at < fence[n]}
        most = readers.unacknowledged.get(name, {})
        lost = {n: left for n, many in below.items() if (left := min(many, most.get(n, many)))}
        if name != group and lost:
            found.append(CutGroup(group=name, messages=sum(lost.values()), partitions=lost))
    return tuple(found)


def warn_about_shares(readers: TopicReaders) -> list[str]:
    """Where share groups cannot be asked for, what they lose is not known, and not nothing."""
    if not readers.shares_unknown:
        return []
    return [f"whether share groups lose unread messages is unknown: {readers.shares_unknown}"]


def refuse_cutting(
    cut: Sequence[CutGroup], allowed: frozenset[str], unknown: str, *, topic: str, hint: str
) -> None:
    """Each group that would lose something is allowed by its own name.

    Args:
        unknown: why there may be more groups; "" where those are all, or that is allowed.

    Raises:
        Refused: names the groups, and what they lose.
    """
    missing = [item for item in cut if item.group not in allowed]
    if missing:
        told = ", ".join(
            f"{item.group} (at most {format_plural(item.messages, 'message')})" for item in missing
        )
        words = " ".join(f"--allow {quote_word(f'{ALLOW_OTHERS}:{m.group}')}" for m in missing)
        raise Refused(
            f"other groups have not read what would be deleted: {told}",
            subject=f"topic {topic}",
            hint=f"let them read on first; {hint.format(words=words)}",
        )
    if unknown:
        words = f"--allow {ALLOW_UNKNOWN}"
        raise Refused(
            f"whether other groups have read what would be deleted is unknown: the tool {unknown}",
            subject=f"topic {topic}",
            hint=f"grant that; {hint.format(words=words)}",
        )
