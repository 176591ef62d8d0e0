"""A plan: a frozen model of its kind, hashed from its dump, stored, read back by its version."""

from __future__ import annotations

import json
import os
import pwd
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from datetime import datetime, time
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError

from backlogctl.clock import OffPeakWindow, format_clock, format_time
from backlogctl.config import OffPeak, Stream
from backlogctl.values import Recovery, RecoveryState, hash_value

if TYPE_CHECKING:
    from backlogctl.ledger import Ledger

# Ways to cancel. A person starts and ends the consumers; the group reads again what was relayed.
LEAVE_CONSUMERS, REWIND = "leave-consumers", "rewind"

# Who did something, as the operating system says it, not only as they call themselves.


@dataclass(frozen=True, slots=True)
class Approver:
    """A user of an operating system (`os`) or of a scheduler (its name)."""

    kind: str
    user: str
    host: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.user}@{self.host}"

    def to_json(self) -> dict[str, str]:
        """Plain data for plans and events."""
        return asdict(self)

    def is_same_person(self, other: Approver) -> bool:
        """Whether both are one account; a name counts the same on every host."""
        return (self.kind, self.user) == (other.kind, other.user)


_ACTING: ContextVar[Approver | None] = ContextVar("acting", default=None)


@contextmanager
def acting_as(identity: Approver) -> Iterator[None]:
    """While a scheduler works for somebody: what is done is on record as theirs."""
    token = _ACTING.set(identity)
    try:
        yield
    finally:
        _ACTING.reset(token)


def find_identity() -> Approver:
    """Who this process works for: the account it runs as, unless a scheduler said another.

    The account is from its uid, which the environment cannot change.
    """
    if acting := _ACTING.get():
        return acting
    uid = os.getuid()
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = f"uid-{uid}"
    return Approver("os", user, socket.gethostname())


# Masks secrets in plain data.


def mask_values(mask: Callable[[str], str], value: Any) -> Any:
    """The value with every text in it masked, at any depth."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, Mapping):
        return {name: mask_values(mask, item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [mask_values(mask, item) for item in value]
    return value


# Groups of a recovery's states.

BEGUN = (RecoveryState.APPROVED, RecoveryState.RUNNING, RecoveryState.PAUSED)
UNFINISHED = (*BEGUN, RecoveryState.FAILED)
# Not at an end: somebody has to do something, or it is being done.
ACTIVE = (RecoveryState.PLANNED, *UNFINISHED)


def is_in_the_way(stream: Stream, recovery: Recovery) -> bool:
    """Whether a plan for the stream is refused because of it."""
    if recovery.state is RecoveryState.FAILED and not recovery.holds_when_failed:
        return False
    same = recovery.topic == stream.topic or recovery.group == stream.group
    return recovery.state in UNFINISHED and same and recovery.cluster == stream.cluster


Timestamp = Annotated[datetime, PlainSerializer(format_time, when_used="json")]
"""A time with a zone; in JSON ISO 8601 in UTC to the microsecond."""


def _sort_words(words: Any) -> Any:
    """Sorted, each once; what is no list of words is left to the validation."""
    if not words:
        return ()
    if isinstance(words, str | Mapping) or not isinstance(words, Iterable):
        return words
    found = tuple(words)
    return tuple(sorted(set(found))) if all(isinstance(w, str) for w in found) else found


AllowedWords = Annotated[tuple[str, ...], BeforeValidator(_sort_words)]
"""What an operator allows by name; sorted, so that the same words give the same hash."""


class PlanPart(BaseModel):
    """A part of a plan: frozen, and it takes no key that it does not know."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, serialize_by_alias=True
    )


class PlannedDisk(PlanPart):
    """Room for what is written, on the disk that has the least left then, in bytes; `enough` is
    None where it is not known, and `told` says why, or what was compared."""

    needed: int | None
    usable: int | None
    enough: bool | None
    told: str


class Options(PlanPart):
    """What an operator says when a plan is made: the arguments of `plan KIND`.

    A kind's own options are fields with a `description`. The form in Airflow has those with a
    title.
    """


class RunOrigin(PlanPart):
    """The run of a scheduler that asked for a plan.

    `deployment` is which Airflow it was, by the id that each keeps; "" where it is not known. Run
    ids alone are the same in two that share a ledger: `scheduled__2026-11-21`.
    """

    scheduler: str
    dag_id: str
    run_id: str
    note: str | None = None
    deployment: str = ""


class PlannedWindow(PlanPart):
    """The off-peak window as it stood in the file, for example 00:30 to 06:00 Asia/Shanghai."""

    begin: str = Field(alias="from")
    to: str
    timezone: str

    @classmethod
    def freeze(cls, off_peak: OffPeak | None) -> Self | None:
        """The window of a stream's configuration; None where it has none."""
        if off_peak is None:
            return None
        window = off_peak.window()
        begin, to = format_clock(window.start), format_clock(window.end)
        return cls.model_validate({"from": begin, "to": to, "timezone": window.zone.key})

    def open(self) -> OffPeakWindow:
        """For asking whether a moment lies in it."""
        start, end = time.fromisoformat(self.begin), time.fromisoformat(self.to)
        return OffPeakWindow(start, end, ZoneInfo(self.timezone))

    def __str__(self) -> str:
        return f"{self.begin}–{self.to} {self.timezone}"


_SAID_OF_ALL = (
    *("version", "kind", "stream", "cluster", "topic", "group", "warnings", "other_groups"),
    *("planned_by", "approval", "configuration", "options", "origin", "off_peak", "topic_id"),
    *("partition_count", "other_topics"),
)


class Plan(PlanPart):
    """What every kind's plan has. A kind's model gives `version`, `kind` and `options`.

    `configuration` is what of the stream's section the plan was computed from: where it changes,
    the plan is stale. `others_unknown` says why there may be more readers of the topic than
    `other_groups`, "" where those are all. `off_peak` is the window that the work keeps to; None
    for at any time. It and `approval` may be another one when the work is done: see
    `Kind.apply_terms`.
    """

    version: int
    kind: str
    stream: str
    cluster: str
    topic: str
    topic_id: str
    partition_count: int
    group: str
    other_groups: tuple[str, ...]
    others_unknown: str = ""
    approval: Literal["named", "second_person", "auto"]
    off_peak: PlannedWindow | None = None
    configuration: Mapping[str, Any]
    options: Options
    warnings: tuple[str, ...]
    origin: RunOrigin | None = None
    planned_by: Approver
    planned_at: Timestamp

    def dump(self) -> dict[str, Any]:
        """Plain JSON: what is stored and hashed."""
        return self.model_dump(mode="json")

    def describe(
        self, verdict: str, counts: Mapping[str, Any], leave_out: Iterable[str] = ()
    ) -> dict[str, Any]:
        """What documents say of it besides what they say of every recovery."""
        dump = self.dump()
        partitions = {"partitions": dump["partitions"]}
        left = {k: v for k, v in dump.items() if k not in {*_SAID_OF_ALL, *leave_out, *partitions}}
        return {"verdict": verdict, "counts": counts, **partitions, **left}

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """The plan that `dump` gave.

        Raises:
            pydantic.ValidationError: another version wrote it, or it was changed.
        """
        # Through JSON: a strict model takes a list for a tuple from there only.
        return cls.model_validate_json(json.dumps(stored), strict=True)

    @property
    def allowed(self) -> tuple[str, ...]:
        """What the operator allowed by name."""
        return tuple(getattr(self.options, "allow", ()))

    def hash(self) -> str:
        """SHA-256 of the dump; an approval is for this."""
        return hash_value(self.dump())


def find_changes(planned: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> list[str]:
    """Keys of a stream's section that say something else now than in the plan, sorted.

    A key that the plan does not have counts only where it is set now: a newer version of this
    program knows more keys, and their defaults change nothing.
    """
    changed: list[str] = []
    for name in sorted({*planned, *now}):
        before, after, here = planned.get(name), now.get(name), f"{path}{name}"
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            changed += find_changes(before, after, f"{here}.")
        elif before != after and (name in planned or after):
            changed.append(here)
    return changed


# Where a plan came from: a run of a scheduler, or nobody but the person at the shell.

AIRFLOW = "airflow"


def name_origin(
    dag_id: str, run_id: str, note: str | None = None, *, deployment: str = ""
) -> RunOrigin:
    """What a plan keeps of the Airflow run that made it."""
    return RunOrigin(
        scheduler=AIRFLOW, dag_id=dag_id, run_id=run_id, note=note, deployment=deployment
    )


def find_origin(recovery: Recovery) -> RunOrigin | None:
    """The run of Airflow that planned it, whatever its kind; None where none did."""
    try:
        found = RunOrigin.model_validate(recovery.plan.get("origin"))
    except ValidationError:
        return None
    return found if found.scheduler == AIRFLOW and found.dag_id else None


def list_recoveries_of_run(ledger: Ledger, origin: RunOrigin) -> tuple[Recovery, ...]:
    """The recoveries that one run of one Airflow planned, oldest first.

    Raises:
        LedgerError.
    """
    return ledger.recoveries.list(origin=origin.model_dump(exclude={"note"}))
