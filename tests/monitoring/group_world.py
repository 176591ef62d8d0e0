"""A cluster that is only figures, and what passes over its groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np

from backlogctl.errors import KafkaFailure
from backlogctl.kafka.bulk import NONE, ClusterLayout, ListedGroup, Offsets, TopicLayout
from backlogctl.monitoring.groups.dating import Tails
from backlogctl.monitoring.groups.survey import Survey, SurveyScope
from backlogctl.monitoring.offsets.lag import EmptyReading, TopicOffset
from backlogctl.monitoring.verdict.status import GroupStatus
from backlogctl.monitoring.watch.board import ClusterPass
from backlogctl_delivery.kafka import AccessDenied

START = 1_000_000_000.0  # seconds since 1970, at the world's zero
SCOPE = SurveyScope("main", window=timedelta(seconds=600))


def make_offsets(values: Iterable[int]) -> Offsets:
    return np.array(list(values), np.int64)


@dataclass
class Topic:
    """One topic's figures, by partition."""

    low: list[int]
    high: list[int]
    stable: list[int] | None = None
    topic_id: str = "one"


@dataclass
class Cluster:
    """Answers from figures; `calls` are the reads in their order."""

    topics: dict[str, Topic] = field(default_factory=dict)
    commits: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    unreadable: set[str] = field(default_factory=set)
    empty: dict[tuple[str, int], bool] = field(default_factory=dict)
    denied: set[str] = field(default_factory=set)  # topics that may not be read
    retention: str = "-1"
    calls: list[str] = field(default_factory=list)
    tails: list[TopicOffset] = field(default_factory=list)
    dated: list[Mapping[tuple[str, int], int]] = field(default_factory=list)
    # (topic, partition, offset) -> when it was written
    written: Callable[[str, int, int], float] = lambda *_: 0.0
    sees_all: bool | None = True
    mute: bool = False  # retentions cannot be read
    busy: bool = False  # a group commits, and retention follows it, between any two reads

    def may_list_all(self) -> bool | None:
        return self.sees_all

    def list_groups(self) -> Sequence[ListedGroup]:
        self._go_on("groups")
        return [ListedGroup(name, self.states.get(name, "stable")) for name in self.commits]

    def read_commits(self, groups: Sequence[str]) -> Mapping[str, Mapping[str, Offsets]]:
        self._go_on("commits")
        return {
            name: {topic: make_offsets(at) for topic, at in self.commits[name].items()}
            for name in groups
            if name not in self.unreadable
        }

    def read_layout(self, topics: Iterable[str]) -> ClusterLayout:
        self._go_on("layout")
        found = {}
        for name in topics:
            if name in self.topics:
                ones = np.ones(len(self.topics[name].high), np.int32)
                found[name] = TopicLayout(self.topics[name].topic_id, ones, ones, ones)
        return ClusterLayout(1, found)

    def read_log_starts(self, layout: ClusterLayout) -> Mapping[str, Offsets]:
        self._go_on("low")
        return {name: make_offsets(self.topics[name].low) for name in layout.topics}

    def read_ends(self, layout: ClusterLayout, *, stable: bool) -> Mapping[str, Offsets]:
        self._go_on("stable" if stable else "high")
        return {
            name: make_offsets((stable and self.topics[name].stable) or self.topics[name].high)
            for name in layout.topics
        }

    def find_offsets(
        self, layout: ClusterLayout, times: Mapping[tuple[str, int], int]
    ) -> Mapping[tuple[str, int], int]:
        self.dated.append(times)
        found = {}
        for (name, number), at in times.items():
            assert name in layout.topics
            low, high = self.topics[name].low[number], self.topics[name].high[number]
            written = (self.written(name, number, offset) for offset in range(low, high))
            young = (low + place for place, time in enumerate(written) if time * 1000 >= at)
            found[name, number] = next(young, NONE)
        return found

    def read_retentions(self, topics: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
        if self.mute:
            raise KafkaFailure("the settings cannot be read")
        return {name: {"retention.ms": self.retention} for name in topics}

    def close(self) -> None: ...

    def read_tails(self, places: Sequence[TopicOffset]) -> EmptyReading:
        self.tails += places
        found = {
            (topic, number): self.empty.get((topic, number), False)
            for topic, number, _ in places
            if topic not in self.denied
        }
        denied = {topic: AccessDenied("denied") for topic, _, _ in places if topic in self.denied}
        return EmptyReading(found, denied)

    def _go_on(self, call: str) -> None:
        self.calls.append(call)
        if self.busy:
            for topic in self.topics.values():
                topic.high = [at + 100 for at in topic.high]
                for of in self.commits.values():
                    of.update({name: [at + 100 for at in offsets] for name, offsets in of.items()})
                topic.low = [at + 100 for at in topic.low]


@dataclass
class World:
    """A cluster, what looks at it, and the time."""

    cluster: Cluster
    scope: SurveyScope = SCOPE
    now: float = 0.0

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Another process looks from here on."""
        tails = Tails(self.cluster.read_tails)
        cluster: Any = self.cluster
        self.survey = Survey(
            cluster, self.scope, tails, clock=lambda: self.now, wall=lambda: START + self.now
        )

    def look(self, times: int = 1, seconds: float = 30.0) -> ClusterPass:
        """Passes, each so many seconds later."""
        for _ in range(times):
            self.now += seconds
            done = self.survey.look()
        return done

    def status(self, times: int = 1, group: str = "service") -> GroupStatus:
        """The group's status after so many passes."""
        (found,) = (one for one in self.look(times).groups if one.group == group)
        return found


def make_world(
    commits: list[int], topic: Topic, *, state: str = "stable", scope: SurveyScope = SCOPE
) -> World:
    cluster = Cluster({"orders": topic}, {"service": {"orders": commits}}, {"service": state})
    return World(cluster, scope)
