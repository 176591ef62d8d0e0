"""The answer to a scrape, from the board and the ledger."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric

from backlog.ledger import Ledger
from backlogctl_delivery.metrics import Poll
from monitoring.board import Board, BoardState, ClusterPass
from monitoring.metrics.catalogue import CATALOGUE, Family
from monitoring.metrics.checkups import describe_checkups, describe_members
from monitoring.metrics.exposition import (
    Counter,
    Gauge,
    Lines,
    Packed,
    pack,
    write_gzip,
    write_head,
)
from monitoring.metrics.families import (
    join_lines,
    list_others,
    write_group_totals,
    write_groups,
    write_topics,
)
from monitoring.metrics.recorded import Record
from monitoring.metrics.sequences import describe_sequences
from monitoring.status import GroupStatus

# Cluster, group, topic.
_Place = tuple[str, str, str]


class StreamLike(Protocol):
    """A configured stream's place."""

    @property
    def cluster(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Exported:
    """What is exported: the configured streams and clusters, and other exporters' names.

    `notifications` counts messages by hook and outcome; `more` gives families of other rooms.
    """

    streams: Mapping[str, StreamLike] = field(default_factory=dict)
    clusters: Collection[str] = ()
    others: Collection[Family] = ()
    notifications: Callable[[], Mapping[tuple[str, str], int]] = dict
    more: Callable[[], Iterable[Metric]] = tuple


@dataclass(frozen=True, slots=True)
class _Written:
    """A source's lines as they were written for `of`."""

    of: object
    families: Lines


class Scrape:
    """Answers scrapes; thread-safe."""

    def __init__(self, board: Board, ledger: Ledger, exported: Exported) -> None:
        self._board = board
        self.ledger = Poll("the ledger", Record(ledger).collect)
        self._exported = exported
        self._lock = Lock()
        self._written: dict[str, _Written] = {}
        self._firsts: dict[_Place, str] = {}
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        self._registry.register(_Live(self))

    def prepare(self) -> None:
        """Writes what is new on the board, so that a scrape need not."""
        with self._lock:
            self._write(self._board.seen)

    def answer(self) -> Iterator[bytes]:
        """The text as one gzip member, in pieces."""
        return write_gzip(self._list_pieces())

    def _list_pieces(self) -> Iterator[Packed]:
        with self._lock:
            self._write(self._board.seen)
            written = [self._written[key].families for key in sorted(self._written)]
        for metric in CATALOGUE:
            parts = [families[metric.name] for families in written if metric.name in families]
            if parts:
                yield pack(write_head(metric))
                yield from parts
        yield pack(generate_latest(self._registry))

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
        with_cluster = len(self._exported.clusters) > 1
        others = self._exported.others
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
                names = others if firsts[_place(status)] == name else ()
                self._keep(key, status, write_groups([status], names, with_cluster=with_cluster))
        for name, done in seen.clusters.items():
            key = f"cluster {name}"
            wanted[key] = done
            if self._is_old(key, done):
                self._keep(key, done, _write_cluster(done, seen, others, with_cluster=with_cluster))
        if "kafka_lag_exporter" in others:
            wanted["totals"] = seen
            if self._is_old("totals", seen):
                self._keep("totals", seen, write_group_totals(_list_once(seen)))
        self._written = {key: one for key, one in self._written.items() if key in wanted}

    def _is_old(self, key: str, of: object) -> bool:
        return key not in self._written or self._written[key].of is not of

    def _keep(self, key: str, of: object, lines: Lines) -> None:
        self._written[key] = _Written(of, lines)


def _place(status: GroupStatus) -> _Place:
    return status.cluster, status.group, status.topic


class _Live:
    """prometheus-client's view of the families that are made at a scrape."""

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    def collect(self) -> Iterable[Metric]:
        return self._scrape.collect_live()


def _write_cluster(
    done: ClusterPass, seen: BoardState, others: Collection[Family], *, with_cluster: bool
) -> Lines:
    return join_lines(
        [
            write_groups(list_others(done, seen.streams), others, with_cluster=with_cluster),
            write_topics(done, others, with_cluster=with_cluster),
        ]
    )


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
