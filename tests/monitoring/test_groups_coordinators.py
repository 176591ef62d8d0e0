"""Commits of many groups, read from coordinators that move and that refuse."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace as Row
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.cluster import ClusterMetadata
from kafka.errors import CoordinatorNotAvailableError, GroupAuthorizationFailedError

from backlog.kafka.coordinators import Coordinators
from backlog.kafka.layouts import Offsets
from backlog.kafka.raw_client import RawClient
from monitoring.groups.bulk import BulkReader

GROUP_AUTHORIZATION_FAILED, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, LOADING = 30, 15, 16, 14


@dataclass
class Brokers:
    """Two brokers; `at` are the coordinators, and who answers for another's group refuses."""

    at: dict[str, int]
    refused: dict[str, int] = field(default_factory=dict)  # by FindCoordinator
    loading: set[str] = field(default_factory=set)
    down: set[int] = field(default_factory=set)
    version: int = 8
    asked: list[str] = field(default_factory=list)

    async def send(self, request: Any, node_id: int | None = None) -> Any:
        name = type(request).__name__
        self.asked.append(name)
        if name.startswith("FindCoordinator"):
            if self.version < 4:
                return self._find(request.key)
            return Row(coordinators=[self._find(key) for key in request.coordinator_keys])
        if node_id in self.down:
            raise CoordinatorNotAvailableError
        if self.version < 8:
            return self._fetch(request.group_id, node_id)
        return Row(groups=[self._fetch(group.group_id, node_id) for group in request.groups])

    def _find(self, key: str) -> Row:
        code = self.refused.get(key, 0)
        return Row(key=key, node_id=self.at[key], host="h", port=1, error_code=code)

    def _fetch(self, name: str, node: int | None) -> Row:
        code = 0 if self.at[name] == node else NOT_COORDINATOR
        part = Row(partition_index=0, committed_offset=7, error_code=0)
        topics = [] if code else [Row(name="orders", partitions=[part])]
        return Row(
            group_id=name, error_code=LOADING if name in self.loading else code, topics=topics
        )


class Reading:
    """A reader whose client asks the brokers above."""

    def __init__(self, brokers: Brokers) -> None:
        self.reader = BulkReader({"bootstrap.servers": "127.0.0.1:1"})
        client = KafkaAdminClient.__new__(KafkaAdminClient)
        client._closed = True
        client._manager = Row(
            cluster=ClusterMetadata(bootstrap_servers=["127.0.0.1:1"]),
            broker_version_data=Row(api_version=lambda _: brokers.version),
            send=brokers.send,
        )
        raw = RawClient.__new__(RawClient)
        raw.admin = client
        self.reader._client = raw
        self.reader._coordinators = Coordinators(raw)

    def read(self, *groups: str) -> dict[str, dict[str, Offsets]]:
        return asyncio.run(self.reader._read_commits(groups))


@pytest.mark.parametrize("version", [8, 3])
def test_a_coordinator_that_moved_is_asked_again(version: int) -> None:
    brokers = Brokers({"a": 1, "b": 1}, version=version)
    reading = Reading(brokers)
    assert set(reading.read("a", "b")) == {"a", "b"}
    brokers.at["a"] = 2
    brokers.asked.clear()
    assert set(reading.read("a", "b")) == {"a", "b"}
    brokers.asked.clear()
    assert set(reading.read("a", "b")) == {"a", "b"}
    assert not any(name.startswith("Find") for name in brokers.asked), "it is remembered"


def test_a_coordinator_that_is_gone_does_not_hide_the_others() -> None:
    brokers = Brokers({"a": 1, "b": 2})
    reading = Reading(brokers)
    reading.read("a", "b")
    brokers.down = {2}
    assert set(reading.read("a", "b")) == {"a"}
    brokers.at["b"] = 1
    assert set(reading.read("a", "b")) == {"a", "b"}


@pytest.mark.parametrize("version", [8, 3])
@pytest.mark.parametrize("code", [GROUP_AUTHORIZATION_FAILED, COORDINATOR_NOT_AVAILABLE])
def test_one_group_that_is_refused_does_not_hide_the_others(code: int, version: int) -> None:
    brokers = Brokers({"a": 1, "b": 1, "c": 2}, {"b": code}, {"c"}, version=version)
    assert set(Reading(brokers).read("a", "b", "c")) == {"a"}


def test_what_nobody_answers_is_an_error() -> None:
    with pytest.raises(GroupAuthorizationFailedError):
        Reading(Brokers({"a": 1}, {"a": GROUP_AUTHORIZATION_FAILED})).read("a")
    with pytest.raises(CoordinatorNotAvailableError):
        Reading(Brokers({"a": 1}, down={1})).read("a")
    assert Reading(Brokers({})).read() == {}
