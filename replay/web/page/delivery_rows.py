"""Outboxes and look-back on the overview: a word, a sentence and the next command for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from backlogctl.config import Config
from backlogctl.formats import format_count, format_duration, format_plural
from backlogctl.replay.web.deliveries import DeliveryLook, LookBackStatus

if TYPE_CHECKING:
    from backlogctl_delivery.lookback.admin import Count
    from backlogctl_delivery.outbox.admin import OutboxStatus


class DeliveryHealth(StrEnum):
    """How an outbox or look-back stands, worst first."""

    PARKED = "parked"
    LATE = "late"
    UNKNOWN = "unknown"
    OK = "ok"


_ORDER = {standing: number for number, standing in enumerate(DeliveryHealth)}
STANDINGS: Mapping[DeliveryHealth, str] = {
    DeliveryHealth.PARKED: "a message was given up, and waits for somebody",
    DeliveryHealth.LATE: "a message waits for longer than is configured as late",
    DeliveryHealth.UNKNOWN: "its database does not answer, or was not asked yet",
    DeliveryHealth.OK: "nothing waits, or not for long",
}
_LOOK_BACK_WORDS: Mapping[str, str] = {
    "prepared": "undecided",
    "committed": "without a prepared message",
    "forwarding": "to be sent",
}


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """One outbox, or look-back.

    Attributes:
        waits: how many wait, by state; states that none is in are left out.
        oldest: seconds since the oldest that waits was added; None where none waits.
        parked: None where it is unknown.
        incidents: records of look-back that did not fit.
        taken_at: when it was looked at last; None before that.
    """

    name: str
    about: str
    standing: DeliveryHealth
    sentence: str = ""
    commands: tuple[str, ...] = ()
    waits: tuple[tuple[str, int], ...] = ()
    oldest: float | None = None
    parked: int | None = None
    incidents: int = 0
    taken_at: datetime | None = None


def list_rows(config: Config, looks: Sequence[DeliveryLook]) -> tuple[DeliveryRow, ...]:
    """Worst first."""
    rows = [_make_row(config, look) for look in looks]
    return tuple(sorted(rows, key=lambda row: _ORDER[row.standing]))


def _make_row(config: Config, look: DeliveryLook) -> DeliveryRow:
    if look.outbox:
        name, about = look.outbox, f"outbox, sent to cluster {config.outboxes[look.outbox].cluster}"
    else:
        assert config.look_back is not None
        name, topic = "look-back", config.look_back.topic
        about = f"topic {topic} of cluster {config.look_back.cluster}"
    row = DeliveryRow(name, about, DeliveryHealth.UNKNOWN, taken_at=look.taken_at)
    if look.status is None:
        status = f"outbox status --outbox {name}" if look.outbox else "lookback status"
        commands = (f"backlogctl {status}",) if look.problem else ()
        return replace(row, sentence=look.problem or "not looked at yet", commands=commands)
    if isinstance(look.status, LookBackStatus):
        assert config.look_back is not None
        return _tell_look_back(row, look.status, config.look_back.late)
    return _tell_outbox(row, look.status, config.outboxes[name].late)


def _tell_outbox(row: DeliveryRow, status: OutboxStatus, late: timedelta) -> DeliveryRow:
    oldest, waiting = status.oldest_waiting_seconds, status.waiting
    listing = f"backlogctl outbox list --outbox {row.name}"
    commands: tuple[str, ...] = ()
    if status.parked:
        standing, commands = DeliveryHealth.PARKED, (f"{listing} --state parked",)
        holds = "It holds" if status.parked == 1 else "They hold"
        sentence = f"{_count_parked(status.parked)} {holds} up later ones of the same key."
        if waiting:
            sentence += f" {format_plural(waiting, 'other')} {_wait(waiting)}{_since(oldest)}."
    elif oldest is not None and oldest > late.total_seconds():
        standing, commands = DeliveryHealth.LATE, (listing,)
        sentence = (
            f"{format_plural(waiting, 'message')} {_wait(waiting)} to be sent{_since(oldest)}: "
            "does `backlogctl outbox run` run, and does Kafka answer?"
        )
    elif waiting:
        standing = DeliveryHealth.OK
        is_ = "is" if waiting == 1 else "are"
        sentence = f"{format_plural(waiting, 'message')} {is_} about to be sent."
    else:
        standing, sentence = DeliveryHealth.OK, "All that was committed is sent."
    waits = (("pending", status.pending), ("in progress", status.in_progress))
    return replace(
        row,
        standing=standing,
        sentence=sentence,
        commands=commands,
        waits=tuple(one for one in waits if one[1]),
        oldest=oldest,
        parked=status.parked,
    )


def _tell_look_back(row: DeliveryRow, status: LookBackStatus, late: timedelta) -> DeliveryRow:
    counts = {str(one.state): one for one in status.counts}
    waiting = [counts[state] for state in _LOOK_BACK_WORDS if counts[state].messages]
    parked = counts["parked"].messages
    overdue = [one for one in waiting if (one.oldest_seconds or 0) > late.total_seconds()]
    total = sum(one.messages for one in waiting)
    commands: tuple[str, ...] = ()
    if parked:
        standing, commands = DeliveryHealth.PARKED, ("backlogctl lookback list --state parked",)
        sentence = (
            f"{_count_parked(parked)} Nobody asks about {'it' if parked == 1 else 'them'}, and "
            "nothing is sent, until somebody resumes."
        )
        if total:
            sentence += f" {format_plural(total, 'other')} {_wait(total)}."
    elif overdue:
        standing = DeliveryHealth.LATE
        worst = max(overdue, key=lambda one: one.oldest_seconds or 0)
        sentence = _tell_overdue(worst)
        commands = (f"backlogctl lookback list --state {worst.state}",)
    elif total:
        standing = DeliveryHealth.OK
        sentence = _tell_waiting(counts)
    else:
        standing, sentence = (
            DeliveryHealth.OK,
            "No transaction is open; what was committed is sent.",
        )
    return replace(
        row,
        standing=standing,
        sentence=sentence,
        commands=commands,
        waits=tuple((_LOOK_BACK_WORDS[str(one.state)], one.messages) for one in waiting),
        oldest=max((one.oldest_seconds or 0.0 for one in waiting), default=None),
        parked=parked,
        incidents=status.incidents,
    )


def _tell_waiting(counts: Mapping[str, Count]) -> str:
    """What is under way, and not late."""
    open_ = counts["prepared"].messages + counts["committed"].messages
    sent = counts["forwarding"].messages
    parts = [
        f"{format_plural(open_, 'message')} {_wait(open_)} for a transaction to end."
        if open_
        else "",
        f"{format_plural(sent, 'message')} {'is' if sent == 1 else 'are'} about to be sent."
        if sent
        else "",
    ]
    return " ".join(part for part in parts if part)


def _tell_overdue(count: Count) -> str:
    messages, since = format_plural(count.messages, "message"), _since(count.oldest_seconds)
    wait = _wait(count.messages)
    match str(count.state):
        case "prepared":
            return (
                f"{messages} {wait} for a decision{since}: does `backlogctl lookback run` run, and "
                "do the services answer?"
            )
        case "forwarding":
            committed = "was committed" if count.messages == 1 else "were committed"
            return (
                f"{messages} that {committed} {wait} to be sent{since}: "
                "does `backlogctl lookback run` run, and does Kafka answer?"
            )
    return (
        f"{messages} {wait} for the prepared message{since}: its decision has come, and it has not."
    )


def _count_parked(parked: int) -> str:
    """A sentence of its own."""
    return f"{format_count(parked)} {'message is' if parked == 1 else 'messages are'} parked."


def _wait(count: int) -> str:
    return "waits" if count == 1 else "wait"


def _since(seconds: float | None) -> str:
    return "" if seconds is None else f", the oldest for {format_duration(seconds)}"
