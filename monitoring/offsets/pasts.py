"""Pasts of streams as the ledger has them: what their next samples are judged by."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from backlogctl.ledger import Ledger
from backlogctl.ledger.samples import CommitMark, KeptPast
from backlogctl.monitoring.offsets.gaps import make_history
from backlogctl.monitoring.offsets.history import (
    StreamHistory,
    dump_past,
    find_form,
    parse_past,
    raise_marks,
)
from backlogctl.monitoring.offsets.sampler import StreamLike
from backlogctl.monitoring.offsets.timeline import RECENT, WINDOW, KnownSamples, is_of
from backlogctl.values import Sample

# So many are read at once: the samples of all would take much memory.
_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class StreamPast:
    """What the ledger knows of a stream's present topic and group.

    Attributes:
        history: what the next sample is judged by.
        rhythm: for `RhythmBook.recall`.
    """

    history: StreamHistory
    known: KnownSamples
    rhythm: str = ""


class PastReader:
    """Pasts of streams that were sampled at once and are looked at one after the other: some are
    read at a time, each up to its sample. Thread-safe."""

    def __init__(
        self, ledger: Ledger, streams: Sequence[StreamLike], samples: Mapping[str, Sample]
    ) -> None:
        self._ledger = ledger
        self._samples = samples
        self._left = {one.name: one for one in streams if one.name in samples}
        self._ready: dict[str, StreamPast] = {}
        self._lock = threading.Lock()

    def take(self, stream: StreamLike, window: timedelta = WINDOW) -> StreamPast:
        """Of one that was not sampled, or is taken again, as it is now."""
        with self._lock:
            if stream.name in self._left:
                later = iter(self._left)
                some = [stream.name, *(one for _, one in zip(range(_AT_ONCE), later, strict=False))]
                batch = [self._left.pop(name) for name in dict.fromkeys(some)]
                self._ready |= read_pasts(self._ledger, batch, window, self._samples)
            if (found := self._ready.pop(stream.name, None)) is not None:
                return found
        return read_pasts(self._ledger, [stream], window)[stream.name]


def keep_past(stream: StreamLike, history: StreamHistory, rhythm: str) -> KeptPast | None:
    """For the ledger; None of one without a sample."""
    if history.taken_at is None:
        return None
    place = (stream.name, stream.cluster, stream.topic, stream.group)
    return KeptPast(*place, history.taken_at, find_form(), dump_past(history), rhythm)


def read_pasts(
    ledger: Ledger,
    streams: Collection[StreamLike],
    window: timedelta = WINDOW,
    before: Mapping[str, Sample] | None = None,
) -> dict[str, StreamPast]:
    """By name the pasts of some streams: as a watch has left them, and the samples since; else
    made of the samples of some hours.

    Args:
        before: samples that were taken already; what came later is not their past.
    """
    now, names = ledger.now(), [one.name for one in streams]
    ends = {name: before[name].taken_at for name in names if name in before} if before else {}

    def is_past(stream: str, at: datetime) -> bool:
        return stream not in ends or at < ends[stream]

    marks: defaultdict[str, list[CommitMark]] = defaultdict(list)
    for mark in ledger.samples.committed_marks(names):
        if is_past(mark.stream, mark.seen_at):
            marks[mark.stream].append(mark)
    firsts = {one.stream: one for one in ledger.samples.firsts(names)}
    kept = {
        name: one
        for name, one in _read_kept(ledger, streams, now - RECENT).items()
        if is_past(name, one[0].taken_at)
    }
    young = min([now, *ends.values()]) - 2 * window
    near = {name for name, (one, _) in kept.items() if one.taken_at >= young}
    found: dict[str, StreamPast] = {}
    for some, since in ((near, young), ({*names} - near, now - RECENT)):
        samples = ledger.samples.histories(some, since) if some else {}
        for stream in (one for one in streams if one.name in some):
            ours = tuple(
                one
                for one in samples.get(stream.name, ())
                if is_of(one, stream) and is_past(one.stream, one.taken_at)
            )
            seen, past = ours, kept.get(stream.name)
            if past is None and not ours:
                # Nobody has looked for hours.
                latest = ledger.samples.latest(stream.name)
                if latest is not None and is_of(latest, stream):
                    seen = (latest,) if is_past(stream.name, latest.taken_at) else ()
            history = _make_history(stream, past, seen, marks[stream.name])
            known = KnownSamples(ours, since, firsts.get(stream.name))
            rhythm = "" if past is None else past[0].rhythm
            found[stream.name] = StreamPast(history, known, rhythm)
    return found


def _read_kept(
    ledger: Ledger, streams: Iterable[StreamLike], since: datetime
) -> dict[str, tuple[KeptPast, StreamHistory]]:
    """Those that can be gone on from."""
    by_name = {one.name: one for one in streams}
    found = {}
    for one in ledger.samples.kept_pasts(by_name):
        fits = one.form == find_form() and is_of(one, by_name[one.stream])
        if fits and one.taken_at >= since and (history := parse_past(one.past)) is not None:
            found[one.stream] = one, history
    return found


def _make_history(
    stream: StreamLike,
    kept: tuple[KeptPast, StreamHistory] | None,
    samples: Iterable[Sample],
    marks: Iterable[CommitMark],
) -> StreamHistory:
    if kept is None:
        history = make_history(samples)
    else:
        later = [one for one in samples if one.taken_at > kept[0].taken_at]
        history = make_history(later, kept[1])
    own = [
        mark for mark in marks if (mark.group, mark.topic_id) == (stream.group, history.topic_id)
    ]
    return raise_marks(history, own)
