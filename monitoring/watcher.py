"""Watches streams: a loop of looks that survives outages."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from threading import Event

from backlog.clock import Deadline, utc_now
from backlog.config import Config
from backlog.errors import BacklogError, ClusterUnreachable
from backlog.kafka.calls import connect
from backlog.kafka.clients import Admin
from backlog.ledger import Ledger
from backlog.values import Sample
from monitoring.assessing import WINDOW
from monitoring.looking import assess_now, read_timeline
from monitoring.marks import Marks
from monitoring.observing import OBSERVE_SECONDS, Observation, observe_stream
from monitoring.sampler import StreamLike
from monitoring.status import GroupStatus

LOG = logging.getLogger("backlog.monitoring")

THIN_EVERY = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class WatchResult:
    """What a loop of observations did; `error` is the last failure, None without one."""

    rounds: int
    looks: int
    error: BacklogError | None


# Called with what cannot be read and why when an outage begins, and with None when it ends.
OnOutage = Callable[[str, BacklogError | None], None]


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
    others go on.

    Args:
        on_status: is given the status of each stream that was looked at; without it nobody asks
            the brokers for what only the status needs.
        horizon, window: what is judged by, and how long samples are kept.
        on_error: called for every look that failed.
        on_outage: called with failures; None writes them to the log.
        on_round: called at the end of each round, whatever could be seen in it.
    """
    watch = _StreamWatcher(
        config, ledger, interval, _Judging(window, horizon), on_observation, on_status
    )
    outages = _Outages(on_outage or _log_outage)
    done = looks = 0
    failure: BacklogError | None = None
    thin_at = utc_now()
    seconds = interval.total_seconds()
    while not stop_event.is_set():
        round_end = time.monotonic() + seconds
        away: dict[str, BacklogError] = {}
        for name, stream in config.streams.items():
            if stop_event.is_set():
                return WatchResult(done, looks, failure)
            # One time-out a round is enough for a cluster.
            error = away.get(stream.cluster) or watch.look(stream)
            if error is None:
                looks += 1
                outages.end(f"cluster {stream.cluster}", f"stream {name}")
                continue
            failure = error
            if isinstance(error, ClusterUnreachable):
                away[stream.cluster] = error
                outages.begin(f"cluster {stream.cluster}", error)
            else:
                outages.begin(f"stream {name}", error)
            if on_error is not None:
                on_error(stream, error)
        if utc_now() >= thin_at:
            thin_at = utc_now() + THIN_EVERY
            try:
                ledger.samples.thin(utc_now(), horizon)
                watch.timelines.forget()
                outages.end("thinning samples")
            except BacklogError as error:
                outages.begin("thinning samples", error)
        if on_round is not None:
            on_round()
        done += 1
        if rounds is not None and done >= rounds:
            break
        stop_event.wait(max(0.0, round_end - time.monotonic()))
    return WatchResult(done, looks, failure)


@dataclass(frozen=True, slots=True)
class _Judging:
    window: timedelta
    horizon: timedelta


class _StreamWatcher:
    def __init__(
        self,
        config: Config,
        ledger: Ledger,
        interval: timedelta,
        judging: _Judging,
        on_observation: Callable[[Observation], None] | None,
        on_status: Callable[[GroupStatus], None] | None,
    ) -> None:
        self.timelines = _Timelines(ledger)
        self._config = config
        self._ledger = ledger
        self._seconds = min(OBSERVE_SECONDS, max(interval.total_seconds(), 5.0))
        self._judging = judging
        self._on_observation = on_observation
        self._on_status = on_status
        self._admins: dict[str, Admin] = {}
        self._pasts: dict[str, Marks] = {}
        self._tails: dict[str, dict[int, tuple[int, int]]] = {}

    def look(self, stream: StreamLike) -> BacklogError | None:
        """One look; what failed is returned, so that the others go on."""
        try:
            self._look(stream)
        except BacklogError as error:
            return error
        except Exception as error:
            LOG.exception("stream %s", stream.name)
            return BacklogError(
                f"a fault of the program: {type(error).__name__}",
                subject=f"stream {stream.name}",
                hint="it goes on; report what the log says",
            )
        return None

    def _look(self, stream: StreamLike) -> None:
        name, limit = stream.name, Deadline(self._seconds)
        properties = self._config.clusters[stream.cluster].client_properties()
        if stream.cluster not in self._admins:
            self._admins[stream.cluster] = connect(properties)
        admin = self._admins[stream.cluster]
        seen = observe_stream(self._ledger, stream, admin, limit, marks=self._pasts.get(name))
        self._pasts[name] = seen.marks
        if self._on_observation is not None:
            self._on_observation(seen)
        if self._on_status is None:
            return
        history = self.timelines.extend(stream, seen.sample)
        tails = self._tails.setdefault(name, {})
        if not seen.marks.empty_tails:
            tails.clear()  # the topic was made anew: its offsets begin again
        judging, sample = self._judging, seen.sample
        status = assess_now(
            self._ledger, stream, properties, judging, sample, limit, admin, history, tails
        )
        self._pasts[name] = replace(seen.marks, empty_tails=dict(tails))
        self._on_status(status)


class _Timelines:
    """Samples of the streams, read once and extended: a ledger holds weeks of them."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: dict[str, list[Sample]] = {}

    def extend(self, stream: StreamLike, sample: Sample) -> list[Sample]:
        """The stream's samples, the new one is the last."""
        known = self._known.setdefault(stream.name, [])
        if not known:
            known.extend(read_timeline(self._ledger, stream))
        if not known or known[-1].taken_at < sample.taken_at:
            known.append(sample)
        return known

    def forget(self) -> None:
        """Reads them again: they were thinned."""
        self._known.clear()


class _Outages:
    """What fails now; each outage is reported when it begins and when it ends."""

    def __init__(self, report: OnOutage) -> None:
        self._report = report
        self._failing: set[str] = set()

    def begin(self, what: str, error: BacklogError) -> None:
        """It failed, perhaps again."""
        if what not in self._failing:
            self._failing.add(what)
            self._report(what, error)

    def end(self, *names: str) -> None:
        """These answer."""
        for name in names:
            if name in self._failing:
                self._failing.discard(name)
                self._report(name, None)


def _log_outage(what: str, error: BacklogError | None) -> None:
    if error is None:
        LOG.warning("%s: answers again", what)
    else:
        LOG.warning("%s: %s", what, error)
