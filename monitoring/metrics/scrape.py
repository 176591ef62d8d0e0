"""The answer to a scrape, from the board and the ledger."""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Lock

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric

from backlogctl.clock import utc_now
from backlogctl.ledger import Ledger
from backlogctl.monitoring.metrics.catalogue import CATALOGUE, Family
from backlogctl.monitoring.metrics.groups import (
    CounterSeries,
    GaugeSeries,
    Lines,
    list_others,
    write_group_totals,
    write_groups,
    write_head,
    write_topics,
)
from backlogctl.monitoring.metrics.ledger import LedgerReader
from backlogctl.monitoring.offsets.sampler import StreamLike
from backlogctl.monitoring.verdict.status import GroupStatus
from backlogctl.monitoring.watch.board import Board, BoardState, ClusterPass, MemberLook
from backlogctl_delivery.metrics import Poll

# Families of what is looked at now and then: members of streams in trouble, the doctor.


def render_members(seen: BoardState) -> Iterator[Metric]:
    partitions = GaugeSeries("backlog_member_partitions")
    ages = GaugeSeries("backlog_member_commit_age_seconds")
    now = utc_now()
    for stream, members in sorted(seen.members.items()):
        if (status := seen.streams.get(stream)) is None:
            continue
        places: defaultdict[tuple[str, str], list[MemberLook]] = defaultdict(list)
        for one in members:
            places[one.client_id, one.host].append(one)
        for place, same in sorted(places.items()):
            labels = (status.cluster, status.group, status.topic, stream, *place)
            partitions.add_metric(labels, sum(len(one.partitions) for one in same))
            known = [one.last_commit for one in same if one.last_commit is not None]
            if known:
                ages.add_metric(labels, max(0.0, (now - max(known)).total_seconds()))
    yield partitions
    yield ages


def describe_checkups(seen: BoardState) -> Iterator[Metric]:
    """How many findings of each check, and when it was looked."""
    findings = GaugeSeries("backlog_doctor_findings")
    times = GaugeSeries("backlog_doctor_timestamp_seconds")
    for stream, checkup in sorted(seen.checkups.items()):
        counts = Counter((one.check, str(one.level)) for one in checkup.findings)
        for (check, level), count in sorted(counts.items()):
            findings.add_metric((stream, check, level), count)
        times.add_metric((stream,), checkup.taken_at.timestamp())
    yield findings
    yield times


def describe_sequences(seen: BoardState) -> Iterator[Metric]:
    """What the sequence check has read and misses; nothing of what it cannot tell."""
    up, behind = GaugeSeries("backlog_sequence_up"), GaugeSeries("backlog_sequence_behind_messages")
    checked = CounterSeries("backlog_sequence_checked_messages")
    unreadable = CounterSeries("backlog_sequence_unreadable_messages")
    missing = GaugeSeries("backlog_sequence_missing_messages")
    for stream, look in sorted(seen.sequences.items()):
        place = (look.cluster, stream)
        up.add_metric(place, int(not look.trouble))
        checked.add_metric(place, look.checked)
        unreadable.add_metric(place, look.unreadable)
        if look.behind is not None:
            behind.add_metric(place, look.behind)
        for certainty, count in (("lost", look.lost), ("suspect", look.suspect)):
            # A count that nobody keeps up with is a lower bound: then zero says nothing.
            if count is not None and (count or not look.trouble):
                missing.add_metric((*place, certainty), count)
    yield from (up, behind, checked, unreadable, missing)


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
    def __init__(self, board: Board, ledger: Ledger, exported: Exported) -> None:
        self._board = board
        self.ledger = Poll("the ledger", LedgerReader(ledger).collect)
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
        yield from render_members(seen)
        yield from describe_checkups(seen)
        yield from describe_sequences(seen)
        sent = CounterSeries("backlog_notifications")
        for key, count in sorted(self._exported.notifications().items()):
            sent.add_metric(key, count)
        yield sent
        yield from self._exported.more()
        recorded = self.ledger.read()
        answers = GaugeSeries("backlog_ledger_up")
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
    ages = GaugeSeries("backlog_sample_age_seconds")
    failures = CounterSeries("backlog_sample_failures")
    # Where nothing was ever seen, the age is that of the watching.
    times = {(name, ""): board.started_at for name in exported.clusters}
    times |= {(one.cluster, name): board.started_at for name, one in exported.streams.items()}
    times |= seen.looked_at
    for key, at in sorted(times.items()):
        ages.add_metric(key, max(0.0, now - at))
        failures.add_metric(key, seen.failures.get(key, 0))
    yield ages
    yield failures
    seconds, groups = GaugeSeries("backlog_pass_seconds"), GaugeSeries("backlog_groups")
    left_out = GaugeSeries("backlog_partitions_left_out")
    unreadable = GaugeSeries("backlog_groups_unreadable")
    for name, done in sorted(seen.clusters.items()):
        seconds.add_metric([name], done.seconds)
        streams = (status.group for status in seen.streams.values() if status.cluster == name)
        groups.add_metric([name], len({*(status.group for status in done.groups), *streams}))
        left_out.add_metric([name], done.left_out)
        unreadable.add_metric([name], done.unreadable)
    yield from (seconds, groups, left_out, unreadable)
