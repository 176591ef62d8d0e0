"""Looks at all streams on an interval; what cannot be read is said when it begins and ends."""

from __future__ import annotations

import logging
import platform
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Event, Thread
from typing import Self

from backlogctl.clock import Deadline, utc_now
from backlogctl.config import Config
from backlogctl.errors import BacklogError, ClusterUnreachable
from backlogctl.formats import format_duration, format_plural
from backlogctl.kafka.clients import connect, reach_cluster
from backlogctl.kafka.raw_client import keep_clients
from backlogctl.ledger import Ledger
from backlogctl.monitoring.offsets.bookmarks import Bookmarker
from backlogctl.monitoring.offsets.bulk_look import (
    SKEW_SECONDS,
    BulkLook,
    BulkLooker,
    measure_clock_skew,
)
from backlogctl.monitoring.offsets.commits import CommitFeed
from backlogctl.monitoring.offsets.history import StreamHistory
from backlogctl.monitoring.offsets.observation import (
    OBSERVE_SECONDS,
    Observation,
    find_past,
    observe_stream,
)
from backlogctl.monitoring.offsets.pasts import keep_past
from backlogctl.monitoring.offsets.rhythm import RhythmBook
from backlogctl.monitoring.offsets.sampler import StreamLike
from backlogctl.monitoring.offsets.timeline import WINDOW, reach_of, reaches_back, read_timeline
from backlogctl.monitoring.verdict.status import STREAM_WHATS, GroupStatus, PartitionStatus
from backlogctl.monitoring.watch.look import assess_now
from backlogctl.values import Sample

# So seldom it is put on record: it may be large, and what came since is in the samples.
KEEP_PAST_SECONDS = 300.0
# Called with what cannot be read and why when an outage begins, and with None when it ends.
OnOutage = Callable[[str, BacklogError | None], None]


class Outages:
    """What fails now; each outage is reported when it begins and when it ends."""

    def __init__(self, report: OnOutage) -> None:
        self._report = report
        self._failing: set[str] = set()

    def begin(self, what: str, error: BacklogError) -> None:
        """It failed, perhaps again."""
        if what not in self._failing:
            self._failing.add(what)
            self._report(what, error)

    def note(self, what: str, error: BacklogError | None) -> None:
        """What came of it."""
        if error is None:
            self.end(what)
        else:
            self.begin(what, error)

    def end(self, *names: str) -> None:
        """These answer."""
        for name in names:
            if name in self._failing:
                self._failing.discard(name)
                self._report(name, None)


_LEAVE_SECONDS = 2.0


class RoundThread(ABC):
    """Rounds of a look in a thread of their own, while the `with` block runs.

    A look may wait for a broker or a database that is away: as a daemon the thread ends with the
    process.

    Args:
        seconds: from the beginning of a round to that of the next; at once where one takes longer.
        rests: for so long it waits before each round, the first too, however long they take.
    """

    _leave_at = 0.0

    def __init__(self, name: str, seconds: float, *, rests: bool = False) -> None:
        self._seconds, self._rests = seconds, rests
        self._stop = Event()
        self.thread = Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.thread.join(max(0.0, self._leave_at - time.monotonic()))

    def stop(self) -> None:
        """Asks the thread to end; leaving the `with` block waits for it until two seconds later."""
        if not self._stop.is_set():
            self._leave_at = time.monotonic() + _LEAVE_SECONDS
            self._stop.set()

    @abstractmethod
    def look_once(self) -> None:
        """One round; whatever fails in it must not end the rounds in silence."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """After the last round, in the thread."""

    def _run(self) -> None:
        pause = self._seconds if self._rests else 0.0
        while not self._stop.wait(pause):
            began = time.monotonic()
            self.look_once()
            took = 0.0 if self._rests else time.monotonic() - began
            pause = max(0.0, self._seconds - took)
        self.close()


LOG = logging.getLogger(__name__)

THIN_EVERY = timedelta(minutes=10)
# A stream whose oldest unread message may be deleted within so many intervals is sampled so often.
NEAR_INTERVALS = 4
NEAR_SECONDS = 1.0
# Of shorter intervals nobody expects that they are kept.
SLOW_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class WatchResult:
    """What a loop of observations did; `error` is the last failure, None without one."""

    rounds: int
    looks: int
    error: BacklogError | None


def watch_streams(
    config: Config,
    ledger: Ledger,
    interval: timedelta,
    stop_event: Event,
    on_observation: Callable[[Observation], None] | None = None,
    *,
    horizon: timedelta = timedelta(hours=24),
    on_status: Callable[[GroupStatus], None] | None = None,
    window: timedelta = WINDOW,
    on_error: Callable[[StreamLike, BacklogError], None] | None = None,
    on_outage: OnOutage | None = None,
    on_round: Callable[[], None] | None = None,
    rounds: int | None = None,
) -> WatchResult:
    """Observes every stream each `interval` until `stop_event` is set, or for so many rounds.

    A failure, of a cluster or one stream, is reported when it begins and when it ends; the
    others go on. Between its rounds a stream whose retention is near is sampled each second: the
    closer the samples, the better they tell what was deleted unread from what was read.

    Args:
        on_status: is given the status of each stream that was looked at; without it nobody asks
            the brokers for what only the status needs.
        horizon, window: what is judged by, and how long samples are kept.
        on_error: called for every look that failed.
        on_outage: called with failures; None writes them to the log.
        on_round: called at the end of each round, whatever could be seen in it.
    """
    outages = Outages(on_outage or _log_outage)
    watch = _StreamWatcher(
        config,
        ledger,
        interval,
        _Judging(window, horizon),
        outages,
        on_observation,
        on_status,
    )
    with closing(watch):
        done = looks = 0
        failure: BacklogError | None = None
        thin_at = utc_now()
        seconds = interval.total_seconds()
        while not stop_event.is_set():
            began = time.monotonic()
            round_end = began + seconds
            away: dict[str, BacklogError] = {}
            for stream in watch.go_through(config.streams.values(), away):
                if stop_event.is_set():
                    return WatchResult(done, looks, failure)
                # One time-out a round is enough for a cluster.
                error = away.get(stream.cluster) or watch.look(stream)
                if error is None:
                    looks += 1
                    outages.end(f"cluster {stream.cluster}", f"stream {stream.name}")
                    continue
                failure = error
                if isinstance(error, ClusterUnreachable):
                    away[stream.cluster] = error
                    outages.begin(f"cluster {stream.cluster}", error)
                else:
                    outages.begin(f"stream {stream.name}", error)
                if on_error is not None:
                    on_error(stream, error)
            if not away:  # else that is why
                watch.note_pass(time.monotonic() - began, seconds)
            if utc_now() >= thin_at:
                # What is remembered between two of these is short beside the horizon.
                thin_at = utc_now() + min(THIN_EVERY, horizon)
                try:
                    skew = measure_clock_skew(ledger)
                    outages.note("the clock of this host", _judge_clock(skew))
                    now = utc_now() + skew  # that of the samples
                    ledger.samples.thin(now, horizon)
                    ledger.bookmarks.thin(now, horizon)
                    watch.timelines.forget()
                    outages.end("thinning samples")
                except BacklogError as error:
                    outages.begin("thinning samples", error)
            if on_round is not None:
                on_round()
            done += 1
            if rounds is not None and done >= rounds:
                break
            while (left := round_end - time.monotonic()) > 0 and not stop_event.is_set():
                stop_event.wait(min(left, NEAR_SECONDS) if watch.near else left)
                watch.look_closer(stop_event, round_end)
        return WatchResult(done, looks, failure)


def _judge_clock(skew: timedelta) -> BacklogError | None:
    seconds = skew.total_seconds()
    if abs(seconds) <= SKEW_SECONDS:
        return None
    return BacklogError(
        f"it is {format_duration(abs(seconds))} {'behind' if seconds > 0 else 'ahead of'} the "
        "ledger's, which samples and forecasts go by; ages of transactions are wrong by that",
        subject=f"clock of {platform.node()}",
        hint="let both follow the same time servers: `timedatectl`, `chronyc tracking`",
    )


@dataclass(frozen=True, slots=True)
class _Judging:
    window: timedelta
    horizon: timedelta


def _is_told(part: PartitionStatus) -> bool:
    """Whether closer samples would tell nothing: nobody moves a commit below the log start."""
    below = part.committed is not None and part.committed < part.log_start
    return below and not part.consumed_per_second


class _StreamWatcher:
    def __init__(
        self,
        config: Config,
        ledger: Ledger,
        interval: timedelta,
        judging: _Judging,
        outages: Outages,
        on_observation: Callable[[Observation], None] | None,
        on_status: Callable[[GroupStatus], None] | None,
    ) -> None:
        self.timelines = _Timelines(ledger, judging.window)
        self._rhythms = RhythmBook(ledger)
        self._config = config
        self._ledger = ledger
        self.near: dict[str, StreamLike] = {}
        self._near_seconds = NEAR_INTERVALS * interval.total_seconds()
        self._seconds = min(OBSERVE_SECONDS, max(interval.total_seconds(), 5.0))
        self._judging = judging
        self._outages = outages
        self._bookmarker = Bookmarker(ledger)
        self._on_observation = on_observation
        self._on_status = on_status
        self._clusters: dict[str, _ClusterWatcher] = {}
        self._pasts: dict[str, StreamHistory] = {}
        self._kept: dict[str, tuple[float, datetime | None]] = {}  # when, and up to which sample
        self._unstored: list[tuple[Sample, bool]] = []
        self._was_slow = False

    def go_through(
        self, streams: Iterable[StreamLike], away: dict[str, BacklogError], *, in_full: bool = True
    ) -> Iterator[StreamLike]:
        """The streams, cluster by cluster: before its first one a cluster is read, for all of them
        at once, and behind the last one their samples are stored.

        Args:
            away: gets the clusters that do not answer.
            in_full: with what only a status needs.
        """
        ours: defaultdict[str, list[StreamLike]] = defaultdict(list)
        for stream in streams:
            ours[stream.cluster].append(stream)
        for cluster, some in ours.items():
            try:
                self._reach(cluster).look(some, Deadline(self._seconds), in_full=in_full)
            except ClusterUnreachable as error:
                away[cluster] = error
            except BacklogError:
                pass  # each stream is asked alone, and tells what fails
            except Exception:
                LOG.exception("cluster %s: each stream is asked alone", cluster)
            try:
                # Disks, transactions and tails are asked for stream by stream.
                with keep_clients():
                    yield from some
            finally:
                self._store()

    def note_pass(self, took: float, seconds: float) -> None:
        """Tells of passes that take longer than their interval, from the second in a row on."""
        slow = took > max(seconds, SLOW_SECONDS)
        error = None
        if slow and self._was_slow:
            many = format_plural(len(self._config.streams), "stream")
            error = BacklogError(
                f"a pass over {many} took {format_duration(took)}, longer than the interval of "
                f"{format_duration(seconds)}: what is told is that old",
                subject="watch",
                hint="raise `watch.interval`, or give some of the streams to a second watcher",
            )
        self._was_slow = slow
        self._outages.note("passes within the interval", error)

    def _store(self) -> None:
        try:
            self._ledger.samples.add_all(self._unstored)
        except BacklogError as error:
            self._outages.begin("storing samples", error)  # with the next ones
        else:
            self._unstored.clear()
            self._outages.end("storing samples")
            self._keep_pasts()

    def _keep_pasts(self) -> None:
        """Puts on record what the samples and the commit log have shown: who looks next, or a watch
        that is started again, knows it too."""
        now = time.monotonic()
        due = [
            (stream, past)
            for name, stream in self._config.streams.items()
            if (past := self._pasts.get(name)) is not None and self._is_due(name, past, now)
        ]
        told: BacklogError | None = None
        try:
            kept = [keep_past(one, past, self._rhythms.dump(one.name)) for one, past in due]
            self._ledger.samples.keep_pasts([one for one in kept if one is not None])
        except BacklogError as error:
            told = error
        except Exception as error:
            LOG.exception("keeping pasts")
            told = BacklogError(f"internal error ({type(error).__name__})", subject="watch")
        else:
            self._kept |= {stream.name: (now, past.taken_at) for stream, past in due}
        self._outages.note("keeping pasts", told)

    def _is_due(self, name: str, past: StreamHistory, now: float) -> bool:
        at, kept = self._kept.get(name, (-KEEP_PAST_SECONDS, None))
        return past.taken_at != kept and now - at >= KEEP_PAST_SECONDS

    def look(self, stream: StreamLike) -> BacklogError | None:
        """One look; what failed is returned, so that the others go on."""
        try:
            self._look(stream)
        except BacklogError as error:
            return error
        except Exception as error:
            LOG.exception("stream %s", stream.name)
            return BacklogError(
                f"internal error ({type(error).__name__}); see the log and report it",
                subject=f"stream {stream.name}",
                hint="it goes on; report what the log says",
            )
        return None

    def look_closer(self, stop_event: Event, until: float) -> None:
        """Samples the streams whose retention is near, until that monotonic time; the next round
        tells what fails."""
        if time.monotonic() >= until:
            return
        away: dict[str, BacklogError] = {}
        for stream in self.go_through(tuple(self.near.values()), away, in_full=False):
            if stop_event.is_set() or time.monotonic() >= until:
                return
            if stream.cluster in away:
                self.near.pop(stream.name)
                continue
            try:
                seen = self._observe(stream, Deadline(self._seconds), settle=False)
            except BacklogError as error:
                self.near.pop(stream.name)
                if isinstance(error, ClusterUnreachable):
                    away[stream.cluster] = error
                continue
            except Exception:
                LOG.exception("stream %s", stream.name)
                self.near.pop(stream.name)
                continue
            if self._on_observation is not None:
                self._on_observation(seen)

    def _observe(self, stream: StreamLike, limit: Deadline, *, settle: bool = True) -> Observation:
        cluster = self._reach(stream.cluster)
        history = self._pasts.get(stream.name)
        if history is None:
            past = find_past(self._ledger, stream, cluster.seen, self._judging.window)
            self._rhythms.recall(stream.name, past.rhythm)
            history = past.history
        seen = observe_stream(
            *(self._ledger, stream, cluster.admin, limit),
            history=history,
            settle=settle,
            bookmarker=self._bookmarker,
            feed=cluster.feed,
            bulk=cluster.seen,
        )
        self._pasts[stream.name] = seen.history
        self._unstored.extend(seen.unstored)
        if cluster.feed is not None:
            self._outages.note(f"commit log of cluster {stream.cluster}", cluster.feed.problem)
        return seen

    def _reach(self, name: str) -> _ClusterWatcher:
        if name not in self._clusters:
            self._clusters[name] = _ClusterWatcher(self._config, self._ledger, name)
        return self._clusters[name]

    def close(self) -> None:
        self._kept = {name: (-KEEP_PAST_SECONDS, at) for name, (_, at) in self._kept.items()}
        self._keep_pasts()
        for cluster in self._clusters.values():
            cluster.close()

    def _note_retention(self, stream: StreamLike, status: GroupStatus) -> None:
        left = [
            part.seconds_retained
            for part in status.partitions
            if part.lag and part.seconds_retained is not None and not _is_told(part)
        ]
        near = bool(left) and min(left) <= self._near_seconds
        if near and stream.name not in self.near:
            LOG.info("stream %s: retention is near, sampled each second", stream.name)
            self.near[stream.name] = stream
        elif not near:
            self.near.pop(stream.name, None)

    def _look(self, stream: StreamLike) -> None:
        name, limit = stream.name, Deadline(self._seconds)
        seen = self._observe(stream, limit)
        if self._on_observation is not None:
            self._on_observation(seen)
        if self._on_status is None:
            self._outages.note(f"bookmarks of stream {name}", seen.unmarked)
            return
        cluster = self._reach(stream.cluster)
        status = assess_now(
            *(self._ledger, stream, cluster.properties, self._judging, seen),
            *(self.timelines.extend(stream, seen.sample), limit, cluster.admin, self._rhythms),
            settle=False,
            bulk=cluster.seen,
        )
        blind = {one.what: one.error for one in status.unseen}
        for what in STREAM_WHATS:
            # Tails are read only where a lag is small: else nothing says that they can be read.
            if what in blind or what != "tails":
                self._outages.note(f"{what} of stream {name}", blind.get(what))
        self._note_retention(stream, status)
        self._on_status(status)


class _ClusterWatcher:
    """What is kept of a cluster from look to look. `seen`: what was read of it at once, last."""

    def __init__(self, config: Config, ledger: Ledger, name: str) -> None:
        self._name = name
        self.properties = config.clusters[name].client_properties()
        self.admin = connect(self.properties)
        self.feed: CommitFeed | None = None
        if config.watch.commit_log:
            streams = [one for one in config.streams.values() if one.cluster == name]
            self.feed = CommitFeed(self.properties, streams)
        self._looker = BulkLooker(ledger, self.properties)
        self.seen: BulkLook | None = None

    def look(self, streams: Sequence[StreamLike], limit: Deadline, *, in_full: bool) -> None:
        """Reads what can be read for all of them at once; without that each is asked alone.

        Raises:
            ClusterUnreachable, KafkaFailure, LedgerError.
        """
        self.seen = None
        if not self.admin.has_answered:
            reach_cluster(self.admin, f"cluster {self._name}")
        try:
            self.seen = self._looker.look(streams, limit, in_full=in_full)
        except ClusterUnreachable:
            # One broker that is away is enough for that; the others may answer for most streams.
            reach_cluster(self.admin, f"cluster {self._name}")
        if self.feed is not None:
            self.feed.read(limit)

    def close(self) -> None:
        self._looker.close()
        if self.feed is not None:
            self.feed.close()


class _Timelines:
    """Samples of the streams, read once and extended, as far back as they say anything."""

    def __init__(self, ledger: Ledger, window: timedelta) -> None:
        self._ledger = ledger
        self._window = window
        self._known: dict[str, list[Sample]] = {}
        self._cut: set[str] = set()  # of these, older ones may be in the ledger

    def extend(self, stream: StreamLike, sample: Sample) -> list[Sample]:
        """The stream's samples, the new one is the last."""
        name, since = stream.name, sample.taken_at - reach_of(self._window)
        known = self._known.get(name)
        if known is None or (name in self._cut and not reaches_back([*known[:1], sample], sample)):
            known = list(read_timeline(self._ledger, stream, sample, self._window))
            self._known[name] = known
        recent = next((n for n, one in enumerate(known) if one.taken_at >= since), len(known))
        if reaches_back([*known[recent:], sample], sample):
            del known[:recent]
            self._cut.add(name)
        else:
            self._cut.discard(name)
        if not known or known[-1].taken_at < sample.taken_at:
            known.append(sample)
        return known

    def forget(self) -> None:
        """Reads them again: they were thinned."""
        self._known.clear()


def _log_outage(what: str, error: BacklogError | None) -> None:
    if error is None:
        LOG.warning("%s: answers again", what)
    else:
        LOG.warning("%s: %s", what, error)
