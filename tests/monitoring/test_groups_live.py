"""Passes over a real broker's groups, and an exporter through a broker's restart."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace as Row
from typing import Any

import httpx
import pytest
from kafka import KafkaAdminClient
from kafka.cluster import ClusterMetadata
from kafka.errors import (
    CoordinatorNotAvailableError,
    GroupAuthorizationFailedError,
    KafkaConnectionError,
)

from backlogctl.clock import utc_now
from backlogctl.config import root
from backlogctl.errors import BacklogError, ClusterUnreachable
from backlogctl.kafka.admin import create_topic
from backlogctl.kafka.bulk import BulkReader, Offsets, _take_commits
from backlogctl.kafka.raw_client import Coordinators, RawClient
from backlogctl.ledger import Ledger
from backlogctl.monitoring.groups.dating import Tails, make_tail_reader
from backlogctl.monitoring.groups.sampler import GroupSampler
from backlogctl.monitoring.groups.survey import Survey, SurveyScope
from backlogctl.monitoring.metrics.catalogue import Family
from backlogctl.monitoring.metrics.scrape import Exported, Scrape
from backlogctl.monitoring.offsets.observation import observe_stream
from backlogctl.monitoring.verdict.status import Verdict
from backlogctl.monitoring.watch.board import Board, ClusterPass
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.values import Cause
from tests.conftest import MakeTopic
from tests.kit.kafka import (
    StreamStub,
    commit,
    expire_unread,
    join,
    properties_of,
    publish,
    run_together,
    set_offsets_raw,
    wait_until,
)
from tests.kit.processes import watching
from tests.kit.prometheus import Scraped, scrape
from tests.kit.transactions import run_transactions

# The thread that passes over all groups, whatever fails in it.


@dataclass
class FakeSurvey:
    """Passes that fail as long as there is an error."""

    error: BacklogError | None = None
    scope: SurveyScope = field(default_factory=lambda: SurveyScope("main"))
    closed: bool = False

    def look(self) -> ClusterPass:
        if self.error:
            raise self.error
        return ClusterPass("main", utc_now(), 0.1, ())

    def close(self) -> None:
        self.closed = True


def test_what_fails_after_a_pass_does_not_end_the_passes() -> None:
    survey: Any = FakeSurvey()
    board, told = Board(), []
    failed, ended = threading.Semaphore(0), threading.Event()
    broken = True

    def on_pass() -> None:
        if broken:
            failed.release()
            raise ZeroDivisionError

    def on_outage(_: str, error: BacklogError | None) -> None:
        told.append(error)
        if error is None:
            ended.set()
        raise BrokenPipeError

    with GroupSampler(survey, board, timedelta(milliseconds=1), on_pass, on_outage) as sampler:
        for _ in range(3):
            assert failed.acquire(timeout=60)
        broken = False
        assert ended.wait(60)
        assert sampler.thread.is_alive()
        sampler.stop()
        sampler.thread.join(60)
    assert survey.closed
    assert "ZeroDivisionError" in str(told[0])
    assert told[1:] == [None]
    assert board.seen.failures[("main", "")] >= 3


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root, "_SECRETS", {"open-sesame"})
    board, told = Board(), threading.Event()
    survey: Any = FakeSurvey(ClusterUnreachable("no answer with open-sesame"))

    def on_outage(_: str, __: BacklogError | None) -> None:
        told.set()

    with GroupSampler(survey, board, timedelta(seconds=9), lambda: None, on_outage):
        assert told.wait(60)
    (text,) = board.seen.failing.values()
    assert "no answer with ***" in text


# Commits of many groups, read from coordinators that move and that refuse.

GROUP_AUTHORIZATION_FAILED, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, LOADING = 30, 15, 16, 14


@dataclass
class Brokers:
    """Two brokers; `at` are the coordinators, and who answers for another's group refuses."""

    at: dict[str, int]
    refused: dict[str, int] = field(default_factory=dict)  # by FindCoordinator
    loading: set[str] = field(default_factory=set)
    down: set[int] = field(default_factory=set)
    hung: set[int] = field(default_factory=set)
    version: int = 8
    asked: list[str] = field(default_factory=list)

    async def send(self, request: Any, node_id: int | None = None) -> Any:
        name = type(request).__name__
        self.asked.append(name)
        if name.startswith("FindCoordinator"):
            if node_id in self.hung:
                raise KafkaConnectionError
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
        client._closed = False
        cluster = ClusterMetadata(bootstrap_servers=["127.0.0.1:1"])
        cluster._brokers = {number: Row(node_id=number) for number in (1, 2)}
        client._manager = Row(
            cluster=cluster,
            broker_version_data=Row(api_version=lambda _: brokers.version),
            send=brokers.send,
        )
        raw = RawClient.__new__(RawClient)
        raw.admin = client
        self.reader._client = raw
        self.reader._coordinators = Coordinators(raw)

    def read(self, *groups: str) -> dict[str, dict[str, Offsets]]:
        return asyncio.run(self.reader._read_commits(groups, _take_commits))


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


def test_whoever_answers_is_asked_for_a_coordinator() -> None:
    """And one that was silent is not asked again before the others."""
    names = [f"group-{number}" for number in range(20)]
    brokers = Brokers(dict.fromkeys(names, 2))
    reading = Reading(brokers)
    brokers.hung = {1}
    for name in names:
        assert set(reading.read(name)) == {name}
    assert sum(name.startswith("Find") for name in brokers.asked) <= len(names) + 1


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


OTHERS: tuple[Family, ...] = ("kafka_exporter",)
PATIENT = 90.0  # seconds; what is awaited comes at once where the machine has time


@contextmanager
def open_survey(properties: dict[str, str], scope: SurveyScope) -> Iterator[Survey]:
    survey = Survey(BulkReader(properties), scope, Tails(make_tail_reader(properties)))
    with closing(survey):
        yield survey


def test_groups_of_both_protocols_and_a_stream(
    properties: dict[str, str], topic: MakeTopic, unique: str, ledger: Ledger
) -> None:
    name = topic(partitions=3)
    publish(properties, name, {0: 10, 1: 20})
    classic, modern, streamed, beyond = (
        f"{unique}-{kind}" for kind in ("classic", "modern", "streamed", "beyond")
    )
    set_offsets_raw(properties, classic, name, {0: 4, 1: 20})
    set_offsets_raw(properties, streamed, name, {0: 10, 1: 19})
    set_offsets_raw(properties, beyond, name, {0: 500})
    scope = SurveyScope("main", {(streamed, name)}, allow=(f"{unique}-*",))
    member = join(properties, modern, name, group_protocol="consumer")
    with closing(member), open_survey(properties, scope) as survey:
        read = 0
        while read < 30:
            message = member.poll(PATIENT)
            assert message is not None
            if not message.error():
                member.store_offsets(message)
                read += 1
        member.commit(asynchronous=False)
        board = Board()
        board.put_cluster(survey.look())
        stream = StreamStub(name, streamed)
        source = Scrape(
            board, ledger, Exported({"orders": stream}, ("main",), OTHERS, by_partition=True)
        )
        got = scrape(source)
    assert got.labels_of("backlog_verdict", "group") == {classic, modern, beyond}
    assert got.by_partition("backlog_lag_messages", group=classic) == {0: 6, 1: 0}
    assert got.by_partition("kafka_consumergroup_current_offset", consumergroup=classic) == {
        0: 4,
        1: 20,
    }
    assert got.by_partition("backlog_lag_messages", group=modern) == {0: 0, 1: 0}
    assert got.labels_of("backlog_verdict", "verdict", group=modern) == {"ok"}, (
        "2 was never written"
    )
    assert got.labels_of("backlog_verdict", "verdict", group=beyond) == {"beyond_end"}
    assert got.by_partition("kafka_topic_partition_current_offset", topic=name) == {
        0: 10,
        1: 20,
        2: 0,
    }
    status = next(one for one in board.seen.clusters["main"].groups if one.group == modern)
    assert status.group_state in ("stable", "assigning", "reconciling")


def test_a_control_record_at_the_end_is_no_lag(
    properties: dict[str, str], topic: MakeTopic, unique: str
) -> None:
    name, group = topic(partitions=2), f"{unique}-tail"
    for number in range(2):
        run_transactions(properties, name, f"{unique}-tx", (1, True), partition=number)
    set_offsets_raw(properties, group, name, {0: 1, 1: 0})
    with open_survey(properties, SurveyScope("main", allow=(group,))) as survey:
        # A tail is read once the group does not move, and again where the broker was too slow.
        wait_until(lambda: list_lags(survey) == [0, 2], what="the tail is known to be empty")


def list_lags(survey: Survey) -> list[int | None]:
    (status,) = survey.look().groups
    return [part.lag for part in status.partitions]


def test_retention_behind_a_group_is_a_loss(
    properties: dict[str, str], topic: MakeTopic, unique: str
) -> None:
    name, group = topic(partitions=1, config={"retention.ms": "-1"}), f"{unique}-slow"
    expire_unread(properties, name, group, old={0: 40}, read={0: 10}, young={0: 5})
    with open_survey(properties, SurveyScope("main", allow=(group,))) as survey:
        (status,) = survey.look().groups
    assert (status.verdict, status.lost, status.lag) == (Verdict.LOST, 30, 5)
    assert status.retention.time is not None


def test_what_was_written_before_the_first_look_is_dated(
    properties: dict[str, str], topic: MakeTopic, unique: str
) -> None:
    name, group = topic(partitions=3, config={"retention.ms": "604800000"}), f"{unique}-old"
    for hours_ago in (100, 50, 2):
        publish(properties, name, {0: 10, 1: 10}, hours_ago=hours_ago)
    set_offsets_raw(properties, group, name, {0: 5, 1: 15, 2: 0})
    with open_survey(properties, SurveyScope("main", allow=(group,))) as survey:
        (status,) = survey.look().groups
    ages = [(part.lag_seconds or 0) / 3600 for part in status.partitions]
    # Seven days are dated to a hundredth.
    assert ages == [pytest.approx(100, abs=2), pytest.approx(50, abs=2), 0]


def test_two_watchers_of_one_loss_write_one_gap(
    properties: dict[str, str], topic: MakeTopic, group: str, ledger: Ledger
) -> None:
    name = topic(partitions=2, config={"retention.ms": "-1"})
    stream = StreamStub(name, group)
    old = {0: 40, 1: 30}
    observe_stream(ledger, stream, properties)
    expire_unread(properties, name, group, old=old, read={0: 10, 1: 30}, young={0: 5, 1: 5})
    together = threading.Barrier(2)

    def watch() -> None:
        together.wait()
        for _ in range(3):
            observe_stream(ledger, stream, properties)

    run_together(*[watch] * 2)
    expired = [gap for gap in ledger.gaps.list("orders") if gap.cause is Cause.EXPIRED]
    assert [(gap.partition, gap.start, gap.end) for gap in expired] == [(0, 10, 40)]


@pytest.mark.timeout(600)
def test_fault_28_the_exporter_outlives_a_broker(tmp_path: Path) -> None:
    (tmp_path / "kafka").mkdir()
    with EmbeddedKafka.start(tmp_path / "kafka") as kafka:
        properties = properties_of(kafka.bootstrap)
        create_topic(properties, "orders", partitions=1)
        publish(properties, "orders", {0: 10})
        commit(properties, "service", "orders", {0: 5})
        commit(properties, "audit", "orders", {0: 7})
        document = {
            "ledger": f"sqlite:///{tmp_path}/ledger.db",
            "clusters": {"main": properties},
            "watch": {"interval": "1s", "window": "10s"},
            "streams": {"orders": {"cluster": "main", "topic": "orders", "group": "service"}},
        }
        (tmp_path / "backlog.yaml").write_text(json.dumps(document))
        with watching(tmp_path) as running:
            url = running.url
            wait_until(lambda: ask(url, "readyz").status_code == 200, what="ready")
            wait_until(lambda: sees_lags(url, 5, 3), what="both groups")
            kafka.kill()
            wait_until(lambda: ask(url, "readyz").status_code == 503, what="not ready")
            wait_until(lambda: measure_age(url) > 3, what="it shows how old its sample is")
            assert ask(url, "healthz").status_code == 200
            wait_until(lambda: count_failures(url) > 0, what="failures of both samplers")
            kafka.restart()
            publish(properties, "orders", {0: 10})
            wait_until(lambda: sees_lags(url, 15, 13), what="new samples")
            wait_until(lambda: ask(url, "readyz").status_code == 200, what="ready again")
            assert running.process.poll() is None


def ask(url: str, path: str) -> httpx.Response:
    return httpx.get(f"{url}/{path}", timeout=PATIENT)


def read(url: str) -> Scraped:
    return Scraped(ask(url, "metrics").text)


def measure_age(url: str) -> float:
    return read(url).value("backlog_sample_age_seconds", stream="orders")


def sees_lags(url: str, service: int, audit: int) -> bool:
    got = read(url)
    lags = [got.find("backlog_lag_messages", group=group) for group in ("service", "audit")]
    print(lags)
    return [list(one.values()) for one in lags] == [[service], [audit]]


def count_failures(url: str) -> float:
    found = read(url).find("backlog_sample_failures_total")
    assert len(found) == 2
    return min(found.values())
