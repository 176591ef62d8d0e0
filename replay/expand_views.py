"""JSON documents of an expansion; `replay.views` puts them beside what every recovery has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from backlog.clock import format_time
from backlog.config import Stream
from backlog.values import Recovery, RecoveryState
from replay.workspace import Workspace

# Rates are those of the last seconds.
RATE_SECONDS = 5.0
_CURVE_POINTS = 36
_AT_END = (
    RecoveryState.VERIFIED,
    RecoveryState.REJECTED,
    RecoveryState.CANCELLED,
    RecoveryState.FAILED,
)
_COPIED = (
    "lag",
    "lost",
    "temporary",
    "recovery_group",
    "order",
    "factor",
    "replicas",
    "consumers",
    "rate_per_consumer",
    "rate_source",
    "consumed_per_second",
    "produced_per_second",
    "seconds_to_drain_now",
    "seconds_to_drain_expanded",
    "seconds_to_loss",
    "loss_by",
    "wins",
    "smallest_factor",
    "canary",
    "hold",
    "disk",
    "members",
    "stopped",
    "created",
    "raised",
    "given_back",
    "max_lag_at_cutover",
    "launch",
    "planned_at",
)


class StepLike(Protocol):
    """A step as the ledger has it."""

    @property
    def step(self) -> str: ...
    @property
    def first_started_at(self) -> datetime: ...
    @property
    def last_started_at(self) -> datetime: ...
    @property
    def completed_at(self) -> datetime | None: ...
    @property
    def rolled_back_at(self) -> datetime | None: ...
    @property
    def attempts(self) -> int: ...
    @property
    def detail(self) -> Mapping[str, Any]: ...


class BurndownLike(Protocol):
    """What is left at one moment, as the ledger has it."""

    @property
    def at(self) -> datetime: ...
    @property
    def step(self) -> str: ...
    @property
    def source_lag(self) -> int: ...
    @property
    def temporary_lag(self) -> int: ...
    @property
    def relayed(self) -> int: ...
    @property
    def handled(self) -> int: ...
    @property
    def consumers(self) -> int | None: ...


def describe_expansion(recovery: Recovery) -> dict[str, Any]:
    """What `plan expand` and `show` print beside what every recovery has."""
    plan = recovery.plan
    return {
        "verdict": tell_verdict(plan["wins"]),
        "counts": {
            "lag": plan["lag"],
            "lost": plan["lost"],
            "canary": plan["canary"]["messages"],
            "consumers": plan["consumers"],
            "temporary_partitions": plan["temporary"]["partitions"],
        },
        "partitions": [dict(row) for row in plan["partitions"]],
        **{name: plan[name] for name in _COPIED},
    }


def tell_verdict(wins: bool | None) -> str:
    """`wins` or `loses` the race against retention; `no_deadline` where none is in sight."""
    return "no_deadline" if wins is None else ("wins" if wins else "loses")


def describe_expand_run(recovery: Recovery, run: Mapping[str, Any]) -> dict[str, Any]:
    """An expansion as `run` prints it: what was relayed and handled, and how fast."""
    counts = {"relayed": 0, "handled": 0, "drained_per_second": None}
    return {
        **run,
        "id": recovery.id,
        "kind": recovery.kind,
        "state": str(recovery.state),
        "counts": {**counts, **(run.get("counts") or {})},
        "stream": recovery.stream,
    }


def describe_progress(
    steps: Sequence[StepLike], samples: Sequence[BurndownLike], now: datetime, *, live: bool = True
) -> dict[str, Any]:
    """How far an expansion is: its steps, and the burn-down with rates and time left.

    Args:
        samples: of the burn-down, oldest first.
        live: whether it is being worked on: only then is time still passing.
    """
    return {
        "now": format_time(now),
        "live": live,
        "step": next((s.step for s in reversed(steps) if _state_of(s) == "running"), None),
        "steps": [_describe_step(step, now if live else None) for step in steps],
        "burndown": _describe_burndown(samples) if samples else None,
    }


def tell_expansions(workspace: Workspace, stream: Stream) -> list[str]:
    """Where an expansion has stopped a stream's consumers: the lag alone would look well."""
    ledger, told = workspace.ledger, []
    states = (RecoveryState.RUNNING, RecoveryState.PAUSED, RecoveryState.FAILED)
    for recovery in ledger.recoveries.list(stream.name, states):
        steps = {step.step: step for step in ledger.steps.list(recovery.id)}
        restored = steps.get("restore")
        if "stop_consumers" not in steps or (restored is not None and restored.is_complete):
            continue
        last = ledger.burndown.latest(recovery.id)
        left = "" if last is None else f", {last.temporary_lag:,} were unread in its topic"
        reads = "" if recovery.state is RecoveryState.RUNNING else " and nobody reads"
        told.append(
            f"expansion {recovery.id} is {recovery.state}: the original consumers are stopped"
            f"{reads}{left}; see `backlogctl show {recovery.id}`"
        )
    return told


def is_at_end(recovery: Recovery) -> bool:
    """Whether nobody works on it, nor will by itself."""
    return recovery.state in _AT_END


def _state_of(step: StepLike) -> str:
    if step.rolled_back_at is not None:
        return "rolled back"
    return "done" if step.completed_at is not None else "running"


def _describe_step(step: StepLike, now: datetime | None) -> dict[str, Any]:
    end = step.rolled_back_at or step.completed_at or now
    return {
        "step": step.step,
        "state": _state_of(step),
        "started_at": format_time(step.first_started_at),
        "completed_at": None if step.completed_at is None else format_time(step.completed_at),
        "seconds": None
        if end is None
        else max(0.0, round((end - step.first_started_at).total_seconds(), 1)),
        "attempts": step.attempts,
        "detail": dict(step.detail),
    }


def _describe_burndown(samples: Sequence[BurndownLike]) -> dict[str, Any]:
    last = samples[-1]
    since = last.at - timedelta(seconds=RATE_SECONDS)
    first = next(sample for sample in samples if sample.at >= since)
    seconds = (last.at - first.at).total_seconds()
    left = last.source_lag + last.temporary_lag

    def rate(before: int, after: int) -> float | None:
        return round((after - before) / seconds, 1) if seconds > 0 else None

    shrinks = rate(left, first.source_lag + first.temporary_lag)
    return {
        "at": format_time(last.at),
        "step": last.step,
        "source_lag": last.source_lag,
        "temporary_lag": last.temporary_lag,
        "left": left,
        "relayed": last.relayed,
        "handled": last.handled,
        "consumers": last.consumers,
        "relayed_per_second": rate(first.relayed, last.relayed),
        "handled_per_second": rate(first.handled, last.handled),
        "eta_seconds": round(left / shrinks, 1) if shrinks and shrinks > 0 else None,
        "seconds": round((last.at - samples[0].at).total_seconds(), 1),
        "curve": _thin([s.source_lag + s.temporary_lag for s in samples]),
    }


def _thin(values: Sequence[int]) -> list[int]:
    """Few enough points to draw, evenly taken; the last one is kept."""
    if len(values) <= _CURVE_POINTS:
        return list(values)
    step = (len(values) - 1) / (_CURVE_POINTS - 1)
    return [values[round(number * step)] for number in range(_CURVE_POINTS)]
