"""One pass over all groups of a cluster: read in protocol P1's order, remembered, judged."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from fnmatch import fnmatchcase

from backlogctl.clock import utc_now
from backlogctl.errors import BacklogError, KafkaFailure
from backlogctl.formats import format_duration, format_plural
from backlogctl.kafka.bulk import NONE, BulkReader, ClusterLayout, ListedGroup, Offsets
from backlogctl.monitoring.groups.dating import OffsetDates, Tails
from backlogctl.monitoring.groups.judge import GroupHistory, GroupJudge, SampleRows
from backlogctl.monitoring.groups.windows import SampleTimes, TopicHistory, fit
from backlogctl.monitoring.offsets.lag import read_retention, read_size_limit
from backlogctl.monitoring.verdict.status import (
    UNLIMITED,
    GroupStatus,
    PartitionStatus,
    Retention,
    Unseen,
    Verdict,
)
from backlogctl.monitoring.verdict.summary import summarize_group
from backlogctl.monitoring.watch.board import ClusterPass, TopicPartitionState
from backlogctl_delivery.kafka import AccessDenied

# What a pass over all groups could not see, of the cluster and of each group.

_HINT = "`backlogctl acl see STREAM --principal P` prints what grants it"
_SHOWN = 3


def describe_cluster(
    cluster: str, sees_all: bool | None, denied: Mapping[str, BacklogError]
) -> tuple[Unseen, ...]:
    """What holds for the cluster.

    Args:
        sees_all: whether the brokers list every group; None where they do not tell.
        denied: topics whose tails may not be read, and why.
    """
    found: list[Unseen] = []
    subject = f"cluster {cluster}"
    if sees_all is False:
        reason = "may not list all groups (DESCRIBE on the cluster is missing)"
        found.append(Unseen("groups", AccessDenied(reason, subject=subject, hint=_HINT)))
    elif sees_all is None:
        reason = "the brokers do not tell whether it may list all groups"
        found.append(Unseen("groups", KafkaFailure(reason, subject=subject)))
    if denied:
        names = sorted(denied)
        shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        reason = f"may not read {format_plural(len(names), 'topic')} ({shown}): READ is missing"
        found.append(Unseen("tails", AccessDenied(reason, subject=subject, hint=_HINT)))
    return tuple(found)


def add_unseen(
    statuses: Iterable[GroupStatus],
    tails: Mapping[tuple[str, str], BacklogError],
    retentions: Collection[str],
) -> list[GroupStatus]:
    """The statuses, each with what could not be seen of it.

    Args:
        tails: by group and topic, why a small lag could not be looked into.
        retentions: the topics whose retention is known.
    """
    return [
        replace(status, unseen=found)
        if (found := tuple(_list_unseen(status, tails, retentions)))
        else status
        for status in statuses
    ]


def _list_unseen(
    status: GroupStatus, tails: Mapping[tuple[str, str], BacklogError], retentions: Collection[str]
) -> Iterable[Unseen]:
    if status.topic not in retentions:
        reason = "could not read its settings (is DESCRIBE_CONFIGS on it missing?)"
        error = KafkaFailure(reason, subject=f"topic {status.topic}", hint=_HINT)
        yield Unseen("retention", error)
    if error_of_tail := tails.get((status.group, status.topic)):
        yield Unseen("tails", error_of_tail)


# Groups that exist, but could not be read in a pass: their last status is kept.
#
# For a window it stands as it was, with the time it was taken; after that nothing is known. An
# alert about such a group must not end because a coordinator moved.

Key = tuple[str, str]  # group, topic


@dataclass
class UnreadableGroups:
    """Remembers the last status of each group on each topic. `window` is in seconds."""

    window: float
    _last: dict[Key, tuple[float, GroupStatus]] = field(default_factory=dict)

    def add(
        self, judged: Iterable[GroupStatus], expected: Iterable[Key], now: float
    ) -> list[GroupStatus]:
        """Those that were judged, and the last of those that are expected and were not, in order.

        The others are forgotten.
        """
        found = {(status.group, status.topic): (now, status) for status in judged}
        for key in expected:
            if key not in found and key in self._last:
                found[key] = self._last[key]
        self._last = {key: found[key] for key in sorted(found)}
        return [
            status if now - at <= self.window else _make_unknown(status, now - at)
            for at, status in self._last.values()
        ]


def _make_unknown(last: GroupStatus, seconds: float) -> GroupStatus:
    parts = [
        PartitionStatus(
            partition=part.partition,
            log_start=part.log_start,
            committed=part.committed,
            end=part.end,
            lag=None,
            lag_seconds=None,
            lost=None,
            verdict=Verdict.UNKNOWN,
            course=Verdict.UNKNOWN,
        )
        for part in last.partitions
    ]
    status = summarize_group(
        parts,
        stream="",
        cluster=last.cluster,
        topic=last.topic,
        group=last.group,
        group_state=last.group_state,
        taken_at=last.taken_at,
        written=[True] * len(parts),
        retention=last.retention,
    )
    return replace(
        status, sentence=f"{last.topic}: could not be read for {format_duration(seconds)}"
    )


# Rows of a window, beside the one before it and the newest; ends kept up to the horizon.
WINDOW_ROWS = 24
OLD_ROWS = 48
RETENTIONS_FOR = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class SurveyScope:
    """What is surveyed.

    Attributes:
        streams: (group, topic) that are sampled as streams: they are left out here.
        allow, deny: glob patterns of groups.
        max_partitions: partitions of groups that are judged and exported at most.
    """

    cluster: str
    streams: Collection[tuple[str, str]] = ()
    allow: Sequence[str] = ("*",)
    deny: Sequence[str] = ()
    max_partitions: int = 200_000
    window: timedelta = timedelta(minutes=10)
    horizon: timedelta = timedelta(hours=24)

    def takes(self, group: str) -> bool:
        return any(fnmatchcase(group, pattern) for pattern in self.allow) and not any(
            fnmatchcase(group, pattern) for pattern in self.deny
        )


@dataclass(frozen=True, slots=True)
class _PassReading:
    """What one pass read; offsets by topic, commits by group and topic.

    `missing` are topics that were known, and that an answer left out.
    """

    groups: Mapping[str, ListedGroup]
    commits: Mapping[str, Mapping[str, Offsets]]
    layout: ClusterLayout
    missing: frozenset[str]
    low: Mapping[str, Offsets]
    stable: Mapping[str, Offsets]
    high: Mapping[str, Offsets]


@dataclass
class Survey:
    """Passes over one cluster; remembers what the next one needs. Not thread-safe."""

    reader: BulkReader
    scope: SurveyScope
    tails: Tails
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time  # what messages carry
    _topics: dict[str, TopicHistory] = field(default_factory=dict)
    _groups: dict[tuple[str, str], GroupHistory] = field(default_factory=dict)
    _retentions: dict[str, Retention] = field(default_factory=dict)
    _retentions_at: float = float("-inf")
    _missing: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        window = self.scope.window.total_seconds()
        self._moments = SampleTimes(WINDOW_ROWS + 4, window / WINDOW_ROWS)
        self._dates = OffsetDates(self.reader.find_offsets, self.wall)
        self._unreadable = UnreadableGroups(window)
        self._old = SampleTimes(OLD_ROWS, self.scope.horizon.total_seconds() / (OLD_ROWS - 2))

    def look(self) -> ClusterPass:
        """Reads and judges everything.
        Raises ClusterUnreachable, KafkaFailure: nothing of this pass is kept.
        """
        started = time.monotonic()
        sees_all = self.reader.may_list_all()
        groups = {group.name: group for group in self.reader.list_groups()}
        groups = {name: group for name, group in groups.items() if self.scope.takes(name)}
        known = {*self._topics, *(topic for _, topic in self.scope.streams)}
        # 1. The topics' ids. 2. The log starts. 3. The commits.
        before = self.reader.read_layout(known)
        low = dict(self.reader.read_log_starts(before))
        commits = dict(self.reader.read_commits(list(groups)))
        if new := {topic for of in commits.values() for topic in of} - set(before.topics):
            # A commit that was read before the log start would show losses that never happened.
            more = self.reader.read_layout(new)
            low.update(self.reader.read_log_starts(more))
            before = ClusterLayout(more.brokers, {**before.topics, **more.topics})
            again = [name for name, of in commits.items() if not new.isdisjoint(of)]
            commits = {name: of for name, of in commits.items() if name not in set(again)}
            commits.update(self.reader.read_commits(again))
        # The sample's time: before the ends are read, so an offset at `high` or above is younger.
        taken_at, now = utc_now(), self.clock()
        # 4. The last stable offsets. 5. The high watermarks. 6. The ids again.
        stable = self.reader.read_ends(before, stable=True)
        high = self.reader.read_ends(before, stable=False)
        after = self.reader.read_layout(before.topics)
        layout = _keep_same(before, after)
        missing = self._topics.keys() - (before.topics.keys() & after.topics.keys())
        self._refresh_retentions(layout.topics)
        reading = _PassReading(groups, commits, layout, frozenset(missing), low, stable, high)
        row = self._remember(reading, now)
        scope = self.scope
        judge = GroupJudge(
            *(taken_at, scope.cluster),
            *(scope.window.total_seconds(), scope.horizon.total_seconds()),
        )
        judged, left_out = self._judge(reading, row, now, judge)
        self.tails.end_pass()
        return ClusterPass(
            cluster=self.scope.cluster,
            taken_at=taken_at,
            seconds=time.monotonic() - started,
            groups=tuple(self._unreadable.add(judged, self._groups, now)),
            topics={name: _describe_topic(name, reading) for name in sorted(layout.topics)},
            brokers=layout.brokers,
            left_out=left_out,
            unreadable=len(groups.keys() - commits.keys()),
            unseen=describe_cluster(self.scope.cluster, sees_all, self.tails.denied),
        )

    def close(self) -> None:
        self.reader.close()

    def _remember(self, reading: _PassReading, now: float) -> int:
        """Writes the reading's row; what is gone, or another topic by now, is forgotten."""
        row, old_row = self._moments.advance(now), self._old.advance(now)
        topics = reading.layout.topics
        # One answer without a topic may be a broker that does not know better; two are not.
        kept = {name: self._topics[name] for name in reading.missing - self._missing}
        self._missing = reading.missing
        for past in kept.values():
            past.clear(row, old_row)
        self._topics = kept | {
            name: past
            for name, past in self._topics.items()
            if name in topics and past.topic_id == topics[name].topic_id
        }
        for name, topic in topics.items():
            count = len(topic.leaders)
            if name not in self._topics:
                self._topics[name] = TopicHistory(
                    topic.topic_id, self._moments.count, self._old.count, count
                )
            past = self._topics[name]
            past.low.write(row, reading.low[name], count)
            past.stable.write(row, reading.stable[name], count)
            past.high.write(row, reading.high[name], count)
            past.old_high.write(old_row, reading.high[name], count)
        self._groups = {
            (group, topic): past
            for (group, topic), past in self._groups.items()
            if group in reading.groups
            and topic in self._topics
            and past.topic_id == self._topics[topic].topic_id
            # One that could not be read now is judged again when it can be.
            and topic in reading.commits.get(group, (topic,))
        }
        for commits in self._groups.values():
            commits.commits.clear(row)
        return row

    def _judge(
        self, reading: _PassReading, row: int, now: float, judge: GroupJudge
    ) -> tuple[list[GroupStatus], int]:
        wanted, left_out = self._choose(reading)
        when = SampleRows(
            self._moments.rows,
            self._moments.list_ages(now),
            self._old.rows,
            self._old.list_ages(now),
        )
        for (group, name), past in wanted.items():
            offsets = reading.commits[group][name]
            past.commits.write(row, offsets, len(reading.layout.topics[name].leaders))
        small = {
            (group, name): tails
            for (group, name), past in wanted.items()
            if (tails := list(judge.list_tails(name, self._topics[name], past, when)))
        }
        self.tails.look(tail for tails in small.values() for tail in tails)
        denied = {
            place: self.tails.denied[place[1]] for place in small if place[1] in self.tails.denied
        }
        self._dates.look(
            reading.layout,
            (
                one
                for (_, name), past in wanted.items()
                for one in judge.list_undated(
                    name, self._topics[name], past, when, self._find_retention(name)
                )
            ),
        )
        judged = [
            judge.judge(
                group=reading.groups[group],
                topic=name,
                past=past,
                of=self._topics[name],
                when=when,
                retention=self._find_retention(name),
                tails=self.tails,
                dates=self._dates,
            )
            for (group, name), past in wanted.items()
        ]
        return add_unseen(judged, denied, self._retentions), left_out

    def _find_retention(self, topic: str) -> Retention:
        return self._retentions.get(topic, UNLIMITED)

    def _choose(self, reading: _PassReading) -> tuple[dict[tuple[str, str], GroupHistory], int]:
        """The groups on topics that are judged, in order, and how many partitions are left out."""
        wanted: dict[tuple[str, str], GroupHistory] = {}
        left, left_out = self.scope.max_partitions, 0
        for group in sorted(reading.commits):
            for name in sorted(reading.commits[group]):
                topic = reading.layout.topics.get(name)
                if topic is None or (group, name) in self.scope.streams:
                    continue
                count = len(topic.leaders)
                if count > left:
                    left_out += count
                    self._groups.pop((group, name), None)
                    continue
                left -= count
                key = (group, name)
                if key not in self._groups:
                    self._groups[key] = GroupHistory.begin(
                        topic.topic_id, self._moments.count, count
                    )
                wanted[key] = self._groups[key]
        return wanted, left_out

    def _refresh_retentions(self, topics: Collection[str]) -> None:
        """All of them at times, and those of new topics at once; the old ones stand until then."""
        now = self.clock()
        all_of_them = now - self._retentions_at > RETENTIONS_FOR.total_seconds()
        wanted = [name for name in topics if all_of_them or name not in self._retentions]
        if not wanted:
            return
        with suppress(BacklogError):  # without it no losses are forecast
            found = self.reader.read_retentions(wanted)
            if all_of_them:
                known = {*topics, *self._topics}
                kept = {name: old for name, old in self._retentions.items() if name in known}
                self._retentions, self._retentions_at = kept, now
            self._retentions.update(
                (name, Retention(read_retention(config), read_size_limit(config)))
                for name, config in found.items()
            )


def _keep_same(before: ClusterLayout, after: ClusterLayout) -> ClusterLayout:
    """The topics as they are now, without those that were recreated or went away meanwhile."""
    return ClusterLayout(
        after.brokers,
        {
            name: topic
            for name, topic in after.topics.items()
            if topic.topic_id == before.topics[name].topic_id and len(topic.leaders)
        },
    )


def _describe_topic(name: str, reading: _PassReading) -> tuple[TopicPartitionState, ...]:
    topic = reading.layout.topics[name]
    count = len(topic.leaders)
    columns: Iterable[tuple[int, int, int, int, int]] = zip(
        fit(reading.low[name], count).tolist(),
        fit(reading.high[name], count).tolist(),
        topic.leaders.tolist(),
        topic.replicas.tolist(),
        topic.in_sync.tolist(),
        strict=True,
    )
    return tuple(
        TopicPartitionState(
            partition=number,
            log_start=None if low == NONE else low,
            high=None if high == NONE else high,
            leader=leader,
            replicas=replicas,
            in_sync=in_sync,
        )
        for number, (low, high, leader, replicas, in_sync) in enumerate(columns)
    )
