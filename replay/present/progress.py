"""How far a recovery of any kind is: its steps, and what is left where that is sampled."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any, TypeVar

from backlogctl.clock import format_time
from backlogctl.formats import format_count, format_duration, format_moment
from backlogctl.ledger import BurndownSample, ChunkRecord, StepRecord
from backlogctl.replay.engine.kind import STEP_COMPLETED, STEP_STARTED
from backlogctl.values import ChunkState, RecoveryState, to_document

# Lines of a recovery's record, as lists of them show them.

Line = tuple[str, Mapping[str, Any]]
_STEP_WORDS = {STEP_STARTED: "started", STEP_COMPLETED: "completed"}


def find_finished_starts(lines: Sequence[Line]) -> frozenset[int]:
    """Numbers of the lines on the start of a step that was completed later: they say nothing more.

    Args:
        lines: action and detail of each, oldest first.
    """
    completed: set[Any] = set()
    starts = set()
    for number, (action, detail) in reversed(list(enumerate(lines))):
        step = detail.get("step")
        if action == STEP_COMPLETED:
            completed.add(step)
        elif action == STEP_STARTED and step in completed:
            starts.add(number)
    return frozenset(starts)


def name_line(action: str, detail: Mapping[str, Any]) -> Line:
    """`inject completed` of a step, with the rest of its detail; any other line as it is."""
    if action not in _STEP_WORDS or "step" not in detail:
        return action, detail
    rest = {name: value for name, value in detail.items() if name != "step"}
    return f"{name_step(detail['step'])} {_STEP_WORDS[action]}", rest


def name_step(step: object) -> str:
    """`stop consumers`."""
    return str(step).replace("_", " ")


T = TypeVar("T")

# Rates are those of the last while: samples come each second, chunks are committed in waves.
_DRAIN_WINDOW = timedelta(seconds=10)
_INJECTION_WINDOW = timedelta(seconds=60)
# Over less than this they say nothing of how long it takes: commits come seconds apart.
_LEAST_SECONDS = 3.0
# Samples come each second; those of a run before this one lie further apart.
_APART = timedelta(seconds=8)
_CURVE_POINTS = 36


@dataclass(frozen=True, slots=True)
class DrainPace:
    """Offsets left in both topics, messages a second, and seconds left; None where unknown."""

    left: int
    relayed: float | None
    handled: float | None
    seconds_left: float | None


def describe_progress(
    steps: Sequence[StepRecord],
    samples: Sequence[BurndownSample],
    now: datetime,
    *,
    chunks: Sequence[ChunkRecord] = (),
    live: bool = True,
) -> dict[str, Any]:
    """How far a recovery is: its steps, and the burn-down with rates and time left.

    Args:
        samples: of the burn-down, oldest first; none where a kind takes none.
        chunks: staged messages and what of them is put back; none where a kind sends none.
        live: whether it is being worked on: only then is time still passing.
    """
    return {
        "now": format_time(now),
        "live": live,
        "step": next((s.step for s in reversed(steps) if s.completed_at is None), None),
        "steps": [_describe_step(step, now if live else None) for step in steps],
        "burndown": _describe_burndown(samples) if samples else None,
        "injection": _describe_injection(chunks, now, live=live) if chunks else None,
    }


def _describe_step(step: StepRecord, now: datetime | None) -> dict[str, Any]:
    end = step.completed_at or now
    return {
        **to_document(step, "step", "completed_at", "attempts", "detail"),
        "state": "done" if step.completed_at else "running" if now else "stopped",
        "started_at": format_time(step.first_started_at),
        "seconds": None
        if end is None
        else max(0.0, round((end - step.first_started_at).total_seconds(), 1)),
    }


def _describe_injection(
    chunks: Sequence[ChunkRecord], now: datetime, *, live: bool
) -> dict[str, Any]:
    """Messages that are staged, those that are in the topic, and how fast they got there."""
    staged = sum(c.sent for c in chunks)
    injected = sum(c.sent for c in chunks if c.state is ChunkState.INJECTED)
    done = [(c.injected_at, c.sent) for c in chunks if c.injected_at is not None]
    rate = measure_injection(done, now) if live else None
    return {
        "staged": staged,
        "injected": injected,
        "injected_per_second": _round(rate),
        "eta_seconds": _round((staged - injected) / rate) if rate else None,
    }


def measure_injection(done: Collection[tuple[datetime, int]], now: datetime) -> float | None:
    """Messages a second over the last while; None before there is anything to tell.

    Args:
        done: when chunks were committed, and how many messages each has.
    """
    recent = [(at, count) for at, count in done if at >= now - _INJECTION_WINDOW]
    begun = now - _INJECTION_WINDOW if len(recent) < len(done) else min(recent, default=(now, 0))[0]
    seconds = (now - begun).total_seconds()
    return sum(count for _, count in recent) / seconds if seconds > 1 else None


def _describe_burndown(samples: Sequence[BurndownSample]) -> dict[str, Any]:
    last, pace = samples[-1], _measure_drain(samples)
    return {
        **to_document(
            last, "at", "step", "source_lag", "temporary_lag", "relayed", "handled", "consumers"
        ),
        "left": pace.left,
        "relayed_per_second": _round(pace.relayed),
        "handled_per_second": _round(pace.handled),
        "eta_seconds": _round(pace.seconds_left),
        "seconds": round((last.at - samples[0].at).total_seconds(), 1),
        "curve": thin([s.source_lag + s.temporary_lag for s in samples], _CURVE_POINTS),
    }


def _measure_drain(samples: Sequence[BurndownSample]) -> DrainPace:
    """How fast both topics were drained in the last seconds; at least one sample.

    Each step has other consumers at work, and a pause between two runs is no work: the time left
    goes by the samples of the last step that follow each other.
    """
    last, first = samples[-1], samples[-1]
    for sample in reversed(samples):
        apart = first.at - sample.at
        if sample.step != last.step or sample.at < last.at - _DRAIN_WINDOW or apart > _APART:
            break
        first = sample
    seconds = (last.at - first.at).total_seconds()
    left = last.source_lag + last.temporary_lag
    if seconds <= 0:
        return DrainPace(left, None, None, None)
    shrinks = (first.source_lag + first.temporary_lag - left) / seconds
    return DrainPace(
        left,
        max(0.0, (last.relayed - first.relayed) / seconds),
        max(0.0, (last.handled - first.handled) / seconds),
        left / shrinks if shrinks > 0 and seconds >= _LEAST_SECONDS else None,
    )


def list_injected(chunks: Iterable[ChunkRecord]) -> list[tuple[datetime, int]]:
    """When each chunk was committed, oldest first, and its messages."""
    return sorted(
        (c.injected_at, c.sent)
        for c in chunks
        if c.state is ChunkState.INJECTED and c.injected_at is not None
    )


def add_up_injected(chunks: Iterable[ChunkRecord]) -> list[tuple[datetime, int]]:
    """When each chunk was committed, and how many messages were back then in all."""
    done = list_injected(chunks)
    sums = accumulate(count for _, count in done)
    return [(at, total) for (at, _), total in zip(done, sums, strict=True)]


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def thin(points: Sequence[T], most: int) -> list[T]:
    """Few enough points to draw, evenly taken; the first and the last are kept."""
    if len(points) <= most:
        return list(points)
    step = (len(points) - 1) / (most - 1)
    return [points[round(number * step)] for number in range(most)]


_BEGUN = (
    RecoveryState.RUNNING,
    RecoveryState.PAUSED,
    RecoveryState.FAILED,
    RecoveryState.VERIFIED,
    RecoveryState.CANCELLED,
)


@dataclass(frozen=True, slots=True)
class Share:
    """Messages done of all; `verb` says what was done with them.

    `rate` and `eta` (seconds) are None where no runner works on it, or they are not known.
    """

    verb: str
    done: int
    total: int
    rate: float | None
    eta: float | None
    lines: tuple[tuple[str, str], ...] = ()

    @property
    def percent(self) -> int:
        """Rounded down: 100 is all of them."""
        return 100 if self.total <= 0 else min(100, int(self.done / self.total * 100))


def find_share(state: RecoveryState, progress: Mapping[str, Any]) -> Share | None:
    """How much is done, of `describe_progress`; None where nothing can be counted yet."""
    if state not in _BEGUN:
        return None
    live, whole = progress["live"], state is RecoveryState.VERIFIED
    if down := progress["burndown"]:
        total = down["handled"] + down["left"]
        lines = [
            ("left in the topic", f"{down['source_lag']:,}"),
            ("left in the temporary topic", f"{down['temporary_lag']:,}"),
            ("relayed", f"{down['relayed']:,}"),
        ]
        if live and down["consumers"] is not None:
            lines.append(("recovery consumers", f"{down['consumers']:,}"))
        # The last sample is a moment before the end.
        done = total if whole else down["handled"]
        rate = down["handled_per_second"] if live else None
        eta = down["eta_seconds"] if live and down["left"] else None
        return Share("handled", done, total, rate, eta, tuple(lines))
    if not (sent := progress["injection"]):
        return None
    done = sent["staged"] if whole else sent["injected"]
    rate = sent["injected_per_second"]
    return Share("put back", done, sent["staged"], rate, sent["eta_seconds"] if rate else None)


# The parts of an event's detail that a table shows; never the content of a message.

# The keys shown, and the words before them.
_WORDS: Mapping[str, str] = {
    "by": "by ",
    "why": "",
    "reason": "",
    "code": "",
    "message": "",
    "step": "at ",
    "from": "from ",
    "to": "to ",
    "runner": "runner ",
    "expires_at": "expires ",
    "matched": "matched ",
    "staged": "of ",
    "gone": "gone: ",
}


def format_detail(detail: Mapping[str, Any]) -> str:
    """The detail in words."""
    parts: list[str] = []
    for name, words in _WORDS.items():
        value = detail.get(name)
        if value in (None, "") or isinstance(value, Mapping | list):
            continue
        if name == "why" and detail.get("message"):
            continue  # the message says it
        if name == "step":
            value = name_step(value)
        elif name.endswith("_at"):
            value = format_moment(str(value))
        elif isinstance(value, int):
            value = format_count(value)
        parts.append(f"{words}{value}")
    if isinstance(seconds := detail.get("seconds"), int | float):
        parts.append(format_duration(seconds))
    return " ".join(parts) if "matched" in detail else ", ".join(parts)
