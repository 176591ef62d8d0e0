"""The answer to a scrape, from the board and the ledger."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Lock

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric

from backlog.ledger import Ledger
from backlogctl_delivery.metrics import Poll
from monitoring.board import Board, BoardState, ClusterPass
from monitoring.metrics.catalogue import CATALOGUE, Family
from monitoring.metrics.checkups import describe_checkups, describe_members
from monitoring.metrics.exposition import Counter, Gauge, Lines, write_head
from monitoring.metrics.families import list_others, write_group_totals, write_groups, write_topics
from monitoring.metrics.recorded import Record
from monitoring.metrics.sequences import describe_sequences
from monitoring.sampler import StreamLike
from monitoring.status import GroupStatus

# Cluster, group, topic.
_Place = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Exported:
    """What is exported: the configured streams and clusters, and other exporters' names.

    `notifications` counts messages by hook and outcome; `more` gives families of other rooms;
    `by_partition` asks for a line of each partition, also of groups that are no stream and ok.
    """

    streams: Mapping[str, StreamLike] = field(default_factory=dict)
    clusters: Collection[str] = ()
    others: Collection[Family] = ()
    notifications: Callable[[], Mapping[tuple[str, str], int]] = dict
    more: Callable[[], Iterable[Metric]] = tuple
    by_partition: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Written:
    """A source's lines as they were written for `of`."""

    of: object
    families: Sequence[Lines]


class _Text:
    """The families that are written once a look, compressed up to where a scrape goes on."""

    def __init__(self, parts: Sequence[Lines]) -> None:
        # Small and quick: lines of one family are much alike.
        self._deflate = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS | 16)
        self._packed = []
        for metric in CATALOGUE:
            lines = [families[metric.name] for families in parts if metric.name in families]
            for text in [write_head(metric), *lines] if lines else []:
                self._packed.append(self._deflate.compress(text))

    def finish(self, live: bytes) -> bytes:
        """One gzip member with the live text at its end."""
        deflate = self._deflate.copy()
        return b"".join([*self._packed, deflate.compress(live), deflate.flush()])


class Scrape:
    """Answers scrapes; thread-safe."""

    def __init__(self, board: Board, ledger: Ledger, exported: Exported) -> None:
        self._board = board
        self.ledger = Poll("the ledger", Record(ledger).collect)
        self._exported = exported
        self._lock = Lock()
        self._written: dict[str, _Written] = {}
        self._firsts: dict[_Place, str] = {}
        self._text = _Text([])
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        self._registry.register(_Live(self))

    def prepare(self) -> None:
        """Writes what is new on the board, so that a scrape need not."""
        with self._lock:
            self._write(self._board.seen)

    def answer(self) -> bytes:
        """The text with gzip."""
        with self._lock:
            self._write(self._board.seen)
            text = self._text
        return text.finish(generate_latest(self._registry))

    def collect_live(self) -> Iterable[Metric]:
        """The families that change with the clock: ages, failures, and the ledger's."""
        seen = self._board.seen
        yield from _describe_looks(self._board, seen, self._exported)
        yield from describe_members(seen)
        yield from describe_checkups(seen)
        yield from describe_sequences(seen)
        sent = Counter("backlog_notifications")
        for key, count in sorted(self._exported.notifications().items()):
            sent.add_metric(key, count)
        yield sent
        yield from self._exported.more()
        recorded = self.ledger.read()
        answers = Gauge("backlog_ledger_up")
        answers.add_metric((), int(recorded is not None))
        yield answers
        yield from recorded or ()

    def _write(self, seen: BoardState) -> None:
        exported, before = self._exported, dict(self._written)
        write = partial(
            write_groups,
            with_cluster=len(exported.clusters) > 1,
            by_partition=exported.by_partition,
        )
        wanted: dict[str, object] = {}
        # The others' names have no stream: two streams of one group and topic are one.
        firsts = {_place(s): name for name, s in sorted(seen.streams.items(), reverse=True)}
        if firsts != self._firsts:
            # What was written before would be there twice.
            self._written, self._firsts = {}, firsts
        for name, status in seen.streams.items():
            key = f"stream {name}"
            wanted[key] = status
            if self._is_old(key, status):
                others = exported.others if firsts[_place(status)] == name else ()
                self._written[key] = _Written(status, [write([status], others)])
        for name, done in seen.clusters.items():
            key = f"cluster {name}"
            wanted[key] = done
            if self._is_old(key, done):
                groups = write(list_others(done, seen.streams), exported.others)
                self._written[key] = _Written(done, [groups, self._write_topics(done, seen)])
        if "kafka_lag_exporter" in exported.others:
            wanted["totals"] = seen
            if self._is_old("totals", seen):
                self._written["totals"] = _Written(seen, [write_group_totals(_list_once(seen))])
        self._written = {key: one for key, one in self._written.items() if key in wanted}
        if self._written != before:
            parts = [lines for _, one in sorted(self._written.items()) for lines in one.families]
            self._text = _Text(parts)

    def _write_topics(self, done: ClusterPass, seen: BoardState) -> Lines:
        exported = self._exported
        streams = {one.topic for one in seen.streams.values() if one.cluster == done.cluster}
        return write_topics(
            *(done, exported.others),
            with_cluster=len(exported.clusters) > 1,
            each=None if exported.by_partition else streams,
        )

    def _is_old(self, key: str, of: object) -> bool:
        return key not in self._written or self._written[key].of is not of


def _place(status: GroupStatus) -> _Place:
    return status.cluster, status.group, status.topic


class _Live:
    """prometheus-client's view of the families that are made at a scrape."""

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    def collect(self) -> Iterable[Metric]:
        return self._scrape.collect_live()


def _list_once(seen: BoardState) -> Iterator[GroupStatus]:
    """Each group on each topic once, however many streams are about it."""
    places = {_place(status): status for status in seen.streams.values()}
    yield from places.values()
    for done in seen.clusters.values():
        yield from list_others(done, seen.streams)


def _describe_looks(board: Board, seen: BoardState, exported: Exported) -> Iterator[Metric]:
    now = board.clock()
    ages = Gauge("backlog_sample_age_seconds")
    failures = Counter("backlog_sample_failures")
    # Where nothing was ever seen, the age is that of the watching.
    times = {(name, ""): board.started_at for name in exported.clusters}
    times |= {(one.cluster, name): board.started_at for name, one in exported.streams.items()}
    times |= seen.looked_at
    for key, at in sorted(times.items()):
        ages.add_metric(key, max(0.0, now - at))
        failures.add_metric(key, seen.failures.get(key, 0))
    yield ages
    yield failures
    seconds, groups = Gauge("backlog_pass_seconds"), Gauge("backlog_groups")
    left_out = Gauge("backlog_partitions_left_out")
    unreadable = Gauge("backlog_groups_unreadable")
    for name, done in sorted(seen.clusters.items()):
        seconds.add_metric([name], done.seconds)
        streams = (status.group for status in seen.streams.values() if status.cluster == name)
        groups.add_metric([name], len({*(status.group for status in done.groups), *streams}))
        left_out.add_metric([name], done.left_out)
        unreadable.add_metric([name], done.unreadable)
    yield from (seconds, groups, left_out, unreadable)
