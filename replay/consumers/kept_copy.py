"""Whether a recovery's temporary topic still has all that was written into it.

It is made so that nothing of it is ever deleted. Where somebody changes that (a job that sets every
topic's retention, a clean-up that deletes records), what was not handled is in the source alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError, PlanStale
from backlogctl.fanout.temporary_topic import find_changed_settings, find_deleted
from backlogctl.formats import Say, format_plural
from backlogctl.kafka.admin import alter_topic_config, committed_offsets, read_topic_id
from backlogctl.kafka.clients import Admin, make_admin
from backlogctl.kafka.errors import TopicMissing
from backlogctl.ledger import Ledger, TemporaryTopic
from backlogctl.replay.consumers.copy_group import find_handled
from backlogctl.replay.consumers.fleet import StoppingContext, find_begun
from backlogctl.replay.consumers.stopped_group import find_expired_relayed
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.next_commands import WayOut
from backlogctl.replay.engine.plan import REWIND
from backlogctl.values import Cause, Certainty, LedgerEvent, OffsetRange, Recovery

# Lines of the record.
DRAINED = "the temporary topic is read to its end"
CUT = "somebody deleted part of the temporary topic"
SET_AGAIN = "the temporary topic's settings were set again"

_SETTINGS_EACH = 10.0
_SECONDS, _ALTER_SECONDS = 30.0, 10.0


@dataclass
class KeptCopy:
    """A recovery's temporary topic, as a run looks at it again and again.

    Attributes:
        record: adds a line to the recovery's record.
    """

    ledger: Ledger
    recovery_id: str
    admin: Admin
    topic: str
    partitions: int
    group: str
    record: Callable[..., None]
    say: Say
    _handled: dict[int, int] | None = None
    _settings_at: float = 0.0
    _refused: str = ""

    def check(self) -> None:
        """All that is not handled is there.

        Raises:
            PlanStale: somebody deleted messages that nobody is known to have handled.
            KafkaFailure, ClusterUnreachable: that is not known.
        """
        # Commits first: what they have passed before it was deleted was handled.
        numbers, limit = range(self.partitions), Deadline(_SECONDS)
        commits = committed_offsets(self.admin, self.group, self.topic, numbers, limit)
        deleted = find_deleted(self.admin, self.topic, self.partitions, limit)
        cut = self._cut
        if any(at > cut.deleted.get(number, 0) for number, at in deleted.items()):
            handled: Mapping[int, int] | None = self._handled
            if handled is None:  # of an earlier run: by the last cut, else by how far it came
                handled = cut.handled or find_handled(self.ledger.events.list(self.recovery_id))
            cut = self._cut = _Cut({**cut.deleted, **deleted}, handled)
            self.record(CUT, **cut.to_json())
            if not cut.lost:
                self.say(f"{CUT}, {self.topic}; all of that was handled before")
        if cut.lost:
            raise PlanStale(
                f"{CUT}: at most {format_plural(cut.lost, 'message')} that nobody is known to have "
                f"handled (partition: from, to: {cut.describe()})",
                subject=f"topic {self.topic}",
                hint="find who did, and keep topics of recoveries out of it. Set back (`cancel "
                "--rewind`), the group reads all that was relayed once more; cancelled without "
                "that, what was deleted is a gap on record",
            )
        self._handled = {number: at or 0 for number, at in commits.items()}

    def count_lost(self) -> int:
        """Messages that were deleted and that nobody is known to have handled, at most."""
        return self._cut.lost

    def keep_settings(self) -> None:
        """Sets again, now and then, what keeps its messages; says so, also where it is refused."""
        now = time.monotonic()
        if now < self._settings_at:
            return
        self._settings_at = now + _SETTINGS_EACH
        changed = find_changed_settings(self.admin, self.topic, Deadline(_SECONDS))
        if not changed:
            return
        told = ", ".join(
            f"{name} is {found}, not {ours}" for name, (found, ours) in changed.items()
        )
        try:
            wanted = {name: ours for name, (_, ours) in changed.items()}
            alter_topic_config(self.admin, self.topic, wanted, Deadline(_ALTER_SECONDS))
        except BacklogError as error:
            if error.retryable or told == self._refused:
                return  # the next look shows it; or it was said
            self._refused = told
            self.say(
                f"somebody changed {self.topic}, so that messages may be deleted unread: {told}. "
                f"It cannot be set again ({error.message}): have it done by somebody who may"
            )
            return
        self._refused = ""
        self.record(SET_AGAIN, settings={name: found for name, (found, _) in changed.items()})
        self.say(
            f"somebody changed {self.topic}, so that messages could be deleted unread: {told}; "
            "they are set again. Find who did, and keep topics of recoveries out of it"
        )

    @cached_property
    def _cut(self) -> _Cut:
        """The last one on record; only who has the lease adds one."""
        return _read_cut(self.ledger.events.list(self.recovery_id))


@dataclass(frozen=True, slots=True)
class _Cut:
    """By partition: what lies below `deleted` is gone, and what lay below `handled` before it went
    was handled."""

    deleted: Mapping[int, int]
    handled: Mapping[int, int]

    @property
    def lost(self) -> int:
        """Offsets that nobody is known to have handled."""
        return sum(max(0, at - self.handled.get(n, 0)) for n, at in self.deleted.items())

    def describe(self) -> str:
        """`0: 120, 400; 3: 0, 17`."""
        pairs = [(n, self.handled.get(n, 0), at) for n, at in sorted(self.deleted.items())]
        return "; ".join(f"{n}: {start}, {end}" for n, start, end in pairs if start < end)

    def to_json(self) -> dict[str, dict[str, int]]:
        return {
            "deleted": {str(n): at for n, at in self.deleted.items()},
            "handled": {str(n): at for n, at in self.handled.items()},
        }


def is_cut(events: Iterable[LedgerEvent]) -> bool:
    """Whether a recovery's record says that what was not handled was deleted."""
    return _read_cut(events).lost > 0


def _read_cut(events: Iterable[LedgerEvent]) -> _Cut:
    found = [event.detail for event in events if event.action == CUT]
    if not found:
        return _Cut({}, {})
    return _Cut(_read_numbers(found[-1]["deleted"]), _read_numbers(found[-1]["handled"]))


def _read_numbers(document: Mapping[str, int]) -> dict[int, int]:
    return {int(number): at for number, at in document.items()}


def note_lost_copy(
    context: StoppingContext[Any],
    positions: Mapping[int, int],
    why: str,
    at_most: int | None = None,
) -> None:
    """What was relayed since the temporary topic was last read to its end is a gap.

    Args:
        positions: the relays'.
        at_most: messages of that which are gone; None: all may be.
    """
    events = context.workspace.ledger.events.list(context.recovery.id)
    drained = [event.detail["positions"] for event in events if event.action == DRAINED]
    starts = dict(context.begun)
    if drained:
        starts |= _read_numbers(drained[-1])
    reason = why if at_most is None else f"{why}: at most {at_most:,} of all its ranges"
    lost = 0
    for number, end in positions.items():
        start = starts.get(number, end)
        if start < end:
            lost += end - start
            item = OffsetRange(number, start, end)
            context.record_gap(item, Cause.SKIPPED, reason, certainty=Certainty.BOUNDED)
    if lost:
        many = format_plural(lost if at_most is None else min(lost, at_most), "message")
        context.say(
            f"{why}: at most {many}, a gap on record: `backlogctl gaps {context.stream.name}`"
        )


# Whether it is still there, and how a recovery without it is closed.

# A broker that is behind may not know a topic for a moment: it must be gone for a while.
ABSENT_SECONDS = 5.0
_AGAIN_SECONDS = 0.3


def refuse_other_copy(admin: Admin, topic: str, topic_id: str) -> None:
    """The temporary topic is the one that was made.

    Raises:
        PlanStale: it is gone, or was replaced.
    """
    found, _ = find_topic(admin, topic, Deadline(_SECONDS))
    if found != topic_id:
        what = "is gone" if not found else f"was replaced: its id is {found}, not {topic_id}"
        raise PlanStale(
            f"this recovery's temporary topic {what}",
            subject=f"topic {topic}",
            hint="set back (`cancel --rewind`), the group reads all that was relayed once more; "
            "cancelled without that, what was in it and not handled is a gap on record",
        )


def find_way_out(
    workspace: Workspace,
    recovery: Recovery,
    temporary: TemporaryTopic | None,
    planned: tuple[str, int],
    limit: Deadline,
) -> WayOut:
    """Where somebody deleted the temporary topic, or part of it, no run goes on: set back, the
    group reads again all that was relayed, as long as the source has it. Else what was not handled
    is a gap.

    Args:
        temporary: None where it was deleted at the end.
        planned: the source's id and partitions.

    Raises:
        KafkaFailure: that is not known.
    """
    admin = make_admin(workspace.config.clusters[recovery.cluster].client_properties())
    events = workspace.ledger.events.list(recovery.id)
    if temporary is None or temporary.topic_id is None:
        return WayOut()
    if not is_cut(events) and not _is_gone(admin, temporary, limit):
        return WayOut()
    if not workspace.kind_of(recovery).asks_how_to_close(workspace, recovery):
        return WayOut(is_only=True)
    begun = find_begun(workspace.ledger, recovery.id)
    has_all = find_topic(admin, recovery.topic, limit) == planned and not find_expired_relayed(
        admin, recovery.topic, begun, events, limit=limit
    )
    return WayOut((REWIND,) if has_all else (), is_only=True)


def _is_gone(admin: Admin, temporary: TemporaryTopic, limit: Deadline) -> bool:
    absent = Deadline(ABSENT_SECONDS)
    while True:
        if find_topic(admin, temporary.name, limit)[0] == temporary.topic_id:
            return False
        if absent.expired:
            return True
        time.sleep(_AGAIN_SECONDS)


def find_topic(admin: Admin, topic: str, limit: Deadline) -> tuple[str, int]:
    """Its id and partitions; "" where there is no such topic."""
    with suppress(TopicMissing):
        return read_topic_id(admin, topic, limit)
    return "", 0
