"""Figures of a recovery and of a stream: the points, and the plots drawn from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from backlogctl.clock import format_time, read_time
from backlogctl.formats import format_duration
from backlogctl.ledger import BurndownSample, ChunkRecord, StepRecord
from backlogctl.ledger.measurements import DiskReading
from backlogctl.monitoring.offsets.lag import count_lag
from backlogctl.monitoring.plots import Mark, Series, Threshold, Unit, draw_lines
from backlogctl.monitoring.watch.disks import list_space
from backlogctl.replay.engine.values import RecoveryRecord
from backlogctl.replay.present.progress import add_up_injected, list_injected, thin
from backlogctl.values import Sample, to_document
from backlogctl_delivery.visible import show_value

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_POINTS = 400
_RATE_STEPS = 60
_ENOUGH_FOR_RATE = 8
_MOST_LINES = 6
# What a figure of the lag has to mark; every step would be too much there.
_MARKED = ("planned", "approved", "run began", "verified", "cancelled", "failed", "loss detected")
_TIERS = (
    ("rows", "rows"),
    ("messages", "messages"),
    ("archived", "in an archive"),
    ("handled", "handled"),
)
_DIFFERENCES = (("rows_without_message", "without message"), ("not_handled", "not handled"))
_WORST = 3

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: what it shows, and what is drawn."""

    caption: str
    series: tuple[Series, ...]
    unit: Unit
    marks: tuple[Mark, ...] = ()
    threshold: Threshold | None = None

    def draw(self, *, wide: bool = False) -> Markup:
        """An `<svg>` for half of a page or a phone; `wide` for a page's whole width."""
        # The drawing escapes the names in it.
        return Markup(
            draw_lines(
                self.series,
                marks=self.marks,
                threshold=self.threshold,
                y=self.unit,
                title=self.caption,
                wide=wide,
            )
        )


def load_templates(*packages: str) -> Environment:
    """Templates of the packages, the first that has one; every value in them is escaped, for HTML
    and for the eye."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in packages]),
        autoescape=True,
        finalize=show_value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def describe_course(record: RecoveryRecord, isolation: str) -> dict[str, Any]:
    """The points of all figures of a recovery."""
    return {
        "lag": _to_points(measure_lag(record.samples, isolation), "lag"),
        "burndown": describe_burndown(record.burndown),
        "injection": describe_injection(record.chunks, record.steps),
        "disks": describe_disks(record.disks, record.recovery.topic),
    }


def measure_lag(samples: Sequence[Sample], isolation: str) -> list[tuple[datetime, int]]:
    """When each sample was taken, and the unread offsets that existed then."""
    return [
        (sample.taken_at, sum(count_lag(part, isolation) or 0 for part in sample.partitions))
        for sample in samples
    ]


def describe_burndown(samples: Sequence[BurndownSample]) -> list[dict[str, Any]]:
    """What was left in both topics while an expansion was at work."""
    return [
        {
            **to_document(
                sample, "at", "source_lag", "temporary_lag", "relayed", "handled", "consumers"
            ),
            "left": sample.source_lag + sample.temporary_lag,
        }
        for sample in thin(samples, MOST_POINTS)
    ]


def describe_disks(readings: Sequence[DiskReading], topic: str) -> list[dict[str, Any]]:
    """`{"of", "points": [{"at", "used"}]}`: bytes used of brokers' disks, and by the topic."""
    return [
        {"of": name, "points": _to_points(points, "used")}
        for name, points in list_space(readings, topic).items()
    ]


def describe_injection(
    chunks: Sequence[ChunkRecord], steps: Sequence[StepRecord]
) -> dict[str, Any]:
    """Messages as they were put back: in all, and a second."""
    done = list_injected(chunks)
    if not done:
        return {"points": [], "rates": []}
    first = done[0][0]
    # When the step began that was at work when the first chunk was committed.
    begin = max((s.first_started_at for s in steps if s.first_started_at <= first), default=first)
    return {
        "points": _to_points([(begin, 0), *add_up_injected(chunks)], "total"),
        "rates": [
            {"at": format_time(at), "messages_per_second": round(rate, 1)}
            for at, rate in _measure_rates(begin, done)
        ],
    }


def _measure_rates(
    begin: datetime, done: Sequence[tuple[datetime, int]]
) -> list[tuple[datetime, float]]:
    """Messages a second by equal pieces of time; none where there are too few chunks to tell."""
    seconds = (done[-1][0] - begin).total_seconds()
    if len({at for at, _ in done}) < _ENOUGH_FOR_RATE or seconds <= 0:
        return []
    # Of a few chunks each, or it would be a picture of the chunks.
    pieces = max(2, min(_RATE_STEPS, len(done) // 4))
    width = seconds / pieces
    counts = [0] * pieces
    for at, count in done:
        counts[min(pieces - 1, int((at - begin).total_seconds() / width))] += count
    return [
        (begin + timedelta(seconds=(number + 0.5) * width), count / width)
        for number, count in enumerate(counts)
    ]


def _to_points(points: Sequence[tuple[datetime, int]], name: str) -> list[dict[str, Any]]:
    return [{"at": format_time(at), name: value} for at, value in thin(points, MOST_POINTS)]


def list_lag_figures(document: Document) -> Iterator[Figure]:
    """The stream's lag around a recovery, with the lines of the timeline that it is about."""
    (lag,) = _read_series((("unread", document["lag"], "lag"),))
    if len(lag.points) < 2:
        return
    marks = tuple(
        Mark(read_time(line["at"]), line["what"])
        for line in document["timeline"]["lines"]
        if line["what"] in _MARKED
    )
    caption = f"Unread offsets of topic {document['topic']} for group {document['group']}"
    yield Figure(caption, (lag,), "messages", _keep_marks(marks, (lag,)))


def list_work_figures(document: Document) -> Iterator[Figure]:
    """How the work went: `burndown`, `injection` and `disks` of the document, with its `steps`."""
    down, injection, disks = document["burndown"], document["injection"], document["disks"]
    lines: list[tuple[str, tuple[tuple[str, Sequence[Document], str], ...], Unit]] = [
        (
            "What was left to handle, step by step",
            (
                ("left in all", down, "left"),
                ("in the topic", down, "source_lag"),
                ("in the temporary topic", down, "temporary_lag"),
            ),
            "messages",
        ),
        (
            "Messages put back, step by step",
            (("put back", injection["points"], "total"),),
            "messages",
        ),
        (
            "Used space, step by step",
            tuple((d["of"], d["points"], "used") for d in disks if len(d["points"]) > 1),
            "bytes",
        ),
        (
            "Messages put back a second",
            (("rate", injection["rates"], "messages_per_second"),),
            "rate",
        ),
    ]
    marks = tuple(
        Mark(read_time(step["started_at"]), step["step"].replace("_", " "))
        for step in document["steps"]
    )
    for caption, rows, unit in lines:
        series = _read_series(rows)[:_MOST_LINES]
        if any(len(one.points) > 1 for one in series):
            yield Figure(caption, series, unit, marks if unit != "rate" else ())


def _read_series(
    rows: Sequence[tuple[str, Sequence[Document], str]],
) -> tuple[Series, ...]:
    return tuple(
        Series(name, tuple((read_time(row["at"]), row[key]) for row in points))
        for name, points, key in rows
    )


def _keep_marks(marks: Sequence[Mark], series: Sequence[Series]) -> tuple[Mark, ...]:
    """Those of the time that is drawn."""
    times = [at for one in series for at, _ in one.points]
    return tuple(mark for mark in marks if min(times) <= mark.at <= max(times))


def make_counts_figure(windows: Sequence[Document]) -> Figure:
    """Of `audit counts`: rows, messages and handled rows over event time; the worst are marked.

    Windows at the ends that are narrower than the others are left out: their counts would look
    like a fall.
    """
    spans = [(read_time(one["start"]), read_time(one["end"]), one) for one in windows]
    width = max((end - start for start, end, _ in spans), default=timedelta(0))
    full = [(start + width / 2, one) for start, end, one in spans if end - start == width]
    series = tuple(
        Series(name, tuple((at, one.get(key)) for at, one in full))
        for key, name in _TIERS
        # Few streams have an archive, and what is on record of earlier audits has no such count.
        if any(one.get(key) if key == "archived" else one[key] is not None for _, one in full)
    )
    told = format_duration(width.total_seconds())
    caption = f"rows, messages and handled rows in windows of {told}"
    return Figure(caption, series, "messages", tuple(_mark_worst(full)))


def _mark_worst(full: Sequence[tuple[datetime, Document]]) -> Iterator[Mark]:
    for key, name in _DIFFERENCES:
        ranked = sorted(
            ((one[key] or 0, at) for at, one in full), key=lambda one: (-one[0], one[1])
        )
        yield from (Mark(at, f"{count:,} {name}") for count, at in ranked[:_WORST] if count)
