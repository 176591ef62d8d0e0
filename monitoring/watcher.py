"""Watches streams: a loop of looks that survives outages."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from threading import Event
from typing import Protocol

from backlog.clock import Deadline, utc_now
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


class ClusterLike(Protocol):
    """A configured cluster."""

    def client_properties(self) -> dict[str, str]: ...


class ConfigLike(Protocol):
    """The sections of the configuration that the loop reads."""

    @property
    def clusters(self) -> Mapping[str, ClusterLike]: ...
    @property
    def streams(self) -> Mapping[str, StreamLike]: ...


@dataclass(frozen=True, slots=True)
class Watched:
    """What a loop of observations did; `error` is the last failure, None without one."""

    rounds: int
    looks: int
    error: BacklogError | None


# Told what cannot be seen and why, once when that begins, and with None once when it ends.
OnOutage = Callable[[str, BacklogError | None], None]


def watch_streams(
    config: ConfigLike,
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
    rounds: int | None = None,
) -> Watched:
    """Observes every stream each `interval` until `stop_event` is set, or for so many rounds.

    A failure, of a cluster or one stream, is told when it begins and when it ends; the others
    go on.

    Args:
        on_status: is given the status of each stream that was looked at; without it nobody asks
            the brokers for what only the status needs.
        horizon, window: what is judged by, and how long samples are kept.
        on_error: called for every look that failed.
        on_outage: is told of failures; None writes them to the log.
    """
    admins: dict[str, Admin] = {}
    pasts: dict[str, Marks] = {}
    timelines = _Timelines(ledger)
    outages = _Outages(on_outage or _log_outage)
    done = looks = 0
    failure: BacklogError | None = None
    thin_at = utc_now()
    seconds = interval.total_seconds()
    while not stop_event.is_set():
        round_end = time.monotonic() + seconds
        unreachable: set[str] = set()
        for name, stream in config.streams.items():
            if stop_event.is_set():
                return Watched(done, looks, failure)
            if stream.cluster in unreachable:
                continue  # one time-out a round is enough for a cluster
            try:
                properties = config.clusters[stream.cluster].client_properties()
                if stream.cluster not in admins:
                    admins[stream.cluster] = connect(properties)
                admin = admins[stream.cluster]
                limit = Deadline(min(OBSERVE_SECONDS, max(seconds, 5.0)))
                seen = observe_stream(ledger, stream, admin, limit, marks=pasts.get(name))
                pasts[name] = seen.marks
                if on_status is not None:
                    history = timelines.extend(stream, seen.sample)
                    judging = Judging(window, horizon)
                    on_status(
                        assess_now(
                            ledger, stream, properties, judging, seen.sample, limit, admin, history
                        )
                    )
            except BacklogError as error:
                failure = error
                if isinstance(error, ClusterUnreachable):
                    unreachable.add(stream.cluster)
                    outages.begin(f"cluster {stream.cluster}", error)
                else:
                    outages.begin(f"stream {name}", error)
                if on_error is not None:
                    on_error(stream, error)
                continue
            looks += 1
            outages.end(f"cluster {stream.cluster}", f"stream {name}")
            if on_observation is not None:
                on_observation(seen)
        if utc_now() >= thin_at:
            thin_at = utc_now() + THIN_EVERY
            try:
                ledger.samples.thin(utc_now(), horizon)
                timelines.forget()
                outages.end("thinning samples")
            except BacklogError as error:
                outages.begin("thinning samples", error)
        done += 1
        if rounds is not None and done >= rounds:
            break
        stop_event.wait(max(0.0, round_end - time.monotonic()))
    return Watched(done, looks, failure)


@dataclass(frozen=True, slots=True)
class Judging:
    """What streams are judged by."""

    window: timedelta
    horizon: timedelta


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
        if known[-1].taken_at < sample.taken_at:
            known.append(sample)
        return known

    def forget(self) -> None:
        """Reads them again: they were thinned."""
        self._known.clear()


class _Outages:
    """What fails now; each outage is told when it begins and when it ends."""

    def __init__(self, tell: OnOutage) -> None:
        self._tell = tell
        self._failing: set[str] = set()

    def begin(self, what: str, error: BacklogError) -> None:
        """It failed, perhaps again."""
        if what not in self._failing:
            self._failing.add(what)
            self._tell(what, error)

    def end(self, *names: str) -> None:
        """These answer."""
        for name in names:
            if name in self._failing:
                self._failing.discard(name)
                self._tell(name, None)


def _log_outage(what: str, error: BacklogError | None) -> None:
    if error is None:
        LOG.warning("%s: answers again", what)
    else:
        LOG.warning("%s: %s", what, error)
