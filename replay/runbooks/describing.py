"""A plan as Markdown, for the person who approves it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from backlog.clock import format_time
from backlog.config import Config
from backlog.numbers import (
    format_bytes,
    format_count,
    format_duration,
    format_moment,
    format_plural,
)
from backlog.values import Recovery
from replay.kinds import EXPAND

_SHOWN = 12
_MARKUP = re.compile(r"[\\`*_\[\]<>#|~&]")
# What begins a list or a rule where it begins a line.
_LINE_MARK = re.compile(r"^(\d*)([-+=]|[.)](?=\s|$))")
# Addresses become links by themselves, escaped or not, unless an unseen character parts them.
_LINK = re.compile(r"(?<=:)(?=//)|(?<=www)(?=\.)|(?=@)", re.IGNORECASE)
_NO_LINK = "\u2060"
_WHO = {
    "named": "anybody who may answer here",
    "second_person": "another person than the one who asked for it",
    "auto": "a person, because it is not exact",
}


def describe_subject(recovery: Recovery) -> str:
    """One line: what would be done, to what."""
    plan = recovery.plan
    if recovery.kind == EXPAND:
        return (
            f"Drain {format_plural(plan['lag'], 'message')} of {recovery.stream} with "
            f"{format_plural(plan['consumers'], 'consumer')} ({recovery.id})"
        )
    count = plan["outcome"]["counts"]["rebuilt"]
    return f"Put {format_plural(count, 'message')} back into {recovery.topic} ({recovery.id})"


def describe_body(recovery: Recovery, config: Config, *, page: str = "") -> str:
    """The plan for people: figures, ranges, what is stopped, created and deleted, how long.

    Args:
        page: address of the recovery's page, for the link.
    """
    own = _describe_expansion if recovery.kind == EXPAND else _describe_rebuild
    plan = recovery.plan
    parts = [*own(recovery)]
    if others := plan["other_groups"]:
        names = ", ".join(_code(name) for name in others)
        parts.append(f"**Other groups on the topic:** {names}")
    if plan["warnings"]:
        parts.append("**To know before**")
        parts.append(_list(plan["warnings"]))
    if note := (plan.get("origin") or {}).get("note"):
        parts.append(f"**Note:** {_plain(note)}")
    planner = plan["planned_by"]
    who = f"Planned by {_code(planner['kind'] + ':' + planner['user'])} at "
    who += f"{format_moment(plan['planned_at'])}. Approved by: {_WHO[plan['approval']]}."
    who += f" The answer is for plan {_code(recovery.plan_hash[:12])} and no other."
    parts.append(who)
    address = page or _find_page(recovery, config)
    if address:
        parts.append(f"[The recovery's page]({address})")
    return "\n\n".join(parts)


def _describe_rebuild(recovery: Recovery) -> Iterable[str]:
    plan = recovery.plan
    outcome, counts = plan["outcome"], plan["outcome"]["counts"]
    yield (
        f"**{outcome['verdict']}**: {format_plural(counts['rebuilt'], 'message')} rebuilt for "
        f"at most {format_plural(counts['expected'], 'lost offset')} of topic "
        f"{_code(recovery.topic)}, group {_code(recovery.group)}."
    )
    if outcome["reasons"]:
        yield _list(outcome["reasons"])
    named = ("candidates", "surviving", "consumed", "already_injected", "quarantined", "rebuilt")
    yield _table(
        ("rows", "count"),
        [(name.replace("_", " "), format_count(counts[name])) for name in named],
    )
    rows = [
        (
            str(gap["partition"]),
            f"{gap['start']:,}–{gap['end'] - 1:,}",
            format_count(gap["end"] - gap["start"]),
            f"{gap['cause']}, {gap['certainty']}",
        )
        for gap in plan["gaps"]
    ]
    yield "**Lost ranges**"
    yield _table(("partition", "offsets", "at most", "why"), rows[:_SHOWN]) + _tell_more(rows)
    proof = outcome["proof"]
    if proof["rate"] is not None:
        yield (
            f"**Proof:** {proof['matched']:,} of {proof['compared']:,} surviving messages are "
            "rebuilt as they are."
        )
    chunks, size = format_plural(outcome["chunks"], "chunk"), format_bytes(outcome["bytes"])
    yield f"**Staged:** {chunks}, {size}."
    yield (
        "**Stopped, created, deleted:** nothing. Consumers go on; messages are added at the end "
        "of the topic, each once."
    )
    yield f"**When:** {_tell_when(plan, counts['rebuilt'])}"


def _tell_when(plan: Mapping[str, Any], count: int) -> str:
    window, rate = plan.get("off_peak"), plan["limits"].get("messages_per_second")
    told = "at once"
    if window:
        told = f"{window['from']} to {window['to']} {window['timezone']}, as many nights as needed"
    if rate:
        told += f", at most {rate:,}/s: about {format_duration(count / rate)} of work"
    return told + "."


def _describe_expansion(recovery: Recovery) -> Iterable[str]:
    plan = recovery.plan
    yield (
        f"**{format_plural(plan['lag'], 'message')}** of topic {_code(recovery.topic)} unread by "
        f"group {_code(recovery.group)}."
    )
    loss = plan["seconds_to_loss"]
    yield _table(
        ("", ""),
        [
            ("as it is", _tell_drain(plan["seconds_to_drain_now"], plan["replicas"])),
            ("expanded", _tell_drain(plan["seconds_to_drain_expanded"], plan["consumers"])),
            (
                "retention",
                "no loss in sight" if loss is None else f"loss in {format_duration(loss)}",
            ),
            ("spread", f"{plan['factor']} × the partitions, order: {plan['order']}"),
            ("disk", str(plan["disk"]["told"] or "room enough")),
        ],
    )
    rows = [
        (str(part["partition"]), format_count(part["lag"]), f"{part['start']:,}")
        for part in sorted(plan["partitions"], key=lambda part: -part["lag"])
        if part["lag"]
    ]
    yield _table(("partition", "behind", "relayed from"), rows[:_SHOWN]) + _tell_more(rows)
    for title, name in (
        ("Stopped", "stopped"),
        ("Created, and deleted at the end", "created"),
        ("Raised", "raised"),
        ("Given back", "given_back"),
    ):
        if told := plan[name]:
            yield f"**{title}**"
            yield _list([told] if isinstance(told, str) else told)


def _tell_drain(seconds: float | None, consumers: int) -> str:
    by = format_plural(consumers, "consumer")
    return f"never, by {by}" if seconds is None else f"in {format_duration(seconds)}, by {by}"


def _find_page(recovery: Recovery, config: Config) -> str:
    if not config.watch.url:
        return ""
    return f"{config.watch.url.rstrip('/')}/recoveries/{quote(recovery.id)}"


def describe_outcome(recovery: Recovery) -> dict[str, Any]:
    """What came of a recovery, for a run's last task."""
    counts = None
    if recovery.kind != EXPAND:
        counts = {
            "planned": recovery.plan["outcome"]["counts"]["rebuilt"],
            "put_back": recovery.injected,
        }
    expires = recovery.approval_expires_at
    return {
        "recovery": recovery.id,
        "kind": recovery.kind,
        "stream": recovery.stream,
        "state": str(recovery.state),
        "approved_by": recovery.approved_by,
        "approved_identity": recovery.approved_identity,
        "approval_expires_at": None if expires is None else format_time(expires),
        "counts": counts,
        "detail": {
            name: recovery.detail[name]
            for name in ("why", "code", "message", "reason", "superseded_by")
            if name in recovery.detail
        },
    }


def _tell_more(rows: Sequence[tuple[str, ...]]) -> str:
    return f"\n\nand {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [tuple(_plain(cell) for cell in line) for line in (head, *rows)]
    lines.insert(1, tuple("---" for _ in head))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {_plain(item)}" for item in items)


def _plain(text: str) -> str:
    """No markup and no links of somebody else's: names and notes are text."""
    text = _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))
    return _LINK.sub(_NO_LINK, _LINE_MARK.sub(r"\1\\\2", text))


def _code(text: str) -> str:
    # A line break would end it.
    return "`" + (" ".join(text.split()).replace("`", "'") or "—") + "`"
