"""The canary, and the live group that must not be harmed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from backlogctl.errors import Paused, VerificationFailed
from backlogctl.kafka.admin import committed_offsets, list_offsets
from backlogctl.kafka.clients import make_consumer, make_producer
from backlogctl.manifests import read_chunk
from backlogctl.spark_backfill.injection.brakes import (
    CombinedBrakes,
    InjectionProgress,
    LiveLagBrake,
    read_canary_back,
)
from tests.crash.scenario import judge
from tests.kafka_tools import move_log_start
from tests.spark_backfill.injection.conftest import MakeScenario
from tests.spark_backfill.injection.doing import (
    Stop,
    assert_same_set,
    await_condition,
    inject_here,
    open_transaction,
)

START = InjectionProgress(injected=0, skipped=0, total=10)


def test_the_canary_goes_first_alone_and_is_read_back(scenario: MakeScenario) -> None:
    job = scenario(canary=True).job
    progress: list[InjectionProgress] = []
    inject_here(job, on_progress=progress.append)
    assert [p.injected for p in progress[:3]] == [5, 10, 15]
    assert progress[3].injected == 15 + 150
    assert_same_set(job)


def test_a_canary_that_reads_back_wrong_stops_the_run(scenario: MakeScenario) -> None:
    job = scenario(canary=True).job
    canary = [chunk for chunk in job.manifest.chunks if chunk.canary]

    def read_back(end: int | None = None) -> int:
        return read_canary_back(job.properties, job.topic, job.directory, canary, start=0, end=end)

    with pytest.raises(VerificationFailed, match="15 missing"):
        read_back()
    with pytest.raises(Paused):
        inject_here(job, CombinedBrakes([Stop(2)]))
    rows = read_chunk(job.directory, canary[1]).to_pylist()
    producer = make_producer(job.properties)
    headers: Any = [(h["name"], h["value"]) for h in rows[0]["headers"]]
    # A copy counts whichever recovery sent it.
    headers[-1] = ("backlog-recovery-id", b"r-20261121-0009")
    producer.produce(job.topic, b"changed", rows[0]["key"], 0, headers=headers)
    assert producer.flush(60) == 0
    with pytest.raises(VerificationFailed, match=r"1 twice.*1 different.*the rest was not sent"):
        inject_here(job)
    with pytest.raises(VerificationFailed, match=r"1 twice.*1 different"):
        read_back()


def test_the_canary_is_read_back_until_the_rest_was_sent_and_never_again(
    scenario: MakeScenario,
) -> None:
    job = scenario(slots=1, canary=True, chunks=2).job
    with pytest.raises(Paused):
        inject_here(job, CombinedBrakes([Stop(2)]))
    ends = list_offsets(job.properties, job.topic, [0], "latest")
    move_log_start(job.properties, job.topic, ends)
    with pytest.raises(VerificationFailed, match="retention has removed the offsets 0 to"):
        inject_here(job)
    # What was read back before the rest went may expire.
    after = scenario(slots=1, canary=True, chunks=2, recovery_id="r-20261121-0002").job
    with pytest.raises(Paused):
        inject_here(after, CombinedBrakes([Stop(4)]))
    ends = list_offsets(after.properties, after.topic, [0], "latest")
    move_log_start(after.properties, after.topic, ends)
    result = inject_here(after)
    assert (result.injected, result.skipped) == (50, 65)


def test_fault_07_an_open_transaction_that_hides_the_canary_is_waited_for_then_pauses(
    scenario: MakeScenario,
) -> None:
    job = replace(scenario(slots=1, canary=True, chunks=1).job, hidden_wait=0.5)
    with (
        open_transaction(job.properties, job.topic, 0),
        pytest.raises(Paused, match=r"somebody's open transaction hides.*\[0\] readable to 0"),
    ):
        inject_here(job)
    with open_transaction(job.properties, job.topic, 0) as stranger:
        threading.Timer(1.0, stranger.abort_transaction, [10]).start()
        inject_here(replace(job, hidden_wait=90.0))
    assert_same_set(job)


@contextmanager
def live_group(properties: Any, topic: str, group: str, *, commits: bool) -> Iterator[None]:
    """A consumer with members; reads and commits everything, or nothing."""
    consumer = make_consumer(properties, {"group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    stop, joined = threading.Event(), threading.Event()

    def consume() -> None:
        while not stop.is_set():
            message = consumer.poll(0.1)
            # Asked here: beside a poll in another thread it has hung.
            if not joined.is_set() and consumer.assignment():
                joined.set()
            if message is not None and message.error() is None and commits:
                consumer.commit(message=message, asynchronous=False)

    thread = threading.Thread(target=consume)
    thread.start()
    try:
        assert joined.wait(90), "no partitions were assigned"
        yield
    finally:
        stop.set()
        thread.join()
        consumer.close()


def test_a_live_group_must_commit_past_the_canary(scenario: MakeScenario, group: str) -> None:
    job = replace(scenario(canary=True, chunks=1).job, group=group, canary_wait=1.0)
    with (
        live_group(job.properties, job.topic, group, commits=False),
        pytest.raises(Paused, match="past the canary"),
    ):
        inject_here(job)
    assert judge(job).missing == 150
    with live_group(job.properties, job.topic, group, commits=True):
        inject_here(replace(job, canary_wait=90.0))
    assert_same_set(job)


def test_a_group_without_members_is_not_waited_for(scenario: MakeScenario, group: str) -> None:
    job = replace(scenario(canary=True, chunks=1).job, group=group, canary_wait=0.1)
    inject_here(job)
    assert_same_set(job)


def test_the_live_lag_counts_without_our_own_messages(scenario: MakeScenario, group: str) -> None:
    job = scenario(slots=2, chunks=2, messages=50).job
    brake = LiveLagBrake(job.properties, group, job.topic, 2, max_lag=20)
    assert brake.look(START) == ""
    producer = make_producer(job.properties)
    for number in range(30):
        producer.produce(job.topic, b"live", partition=number % 2)
    assert producer.flush(60) == 0
    with live_group(job.properties, job.topic, group, commits=True):
        producer.produce(job.topic, b"live", partition=0)
        assert producer.flush(60) == 0
        await_condition(lambda: read_commits(job, group) == {0: 16, 1: 15})
        assert _look(job, group, 0) == ""
    with live_group(job.properties, job.topic, group, commits=False):
        brake = LiveLagBrake(job.properties, group, job.topic, 2, max_lag=20)
        assert brake.look(START) == ""
        inject_here(job)
        sent, chunks = {0: 100, 1: 100}, {0: 2, 1: 2}
        after = InjectionProgress(
            injected=200, skipped=0, total=200, wave=2, slots=sent, chunks=chunks
        )
        assert brake.look(after) == ""  # 200 unread messages, all ours
        for number in range(30):
            producer.produce(job.topic, b"live", partition=number % 2)
        assert producer.flush(60) == 0
        await_condition(lambda: "live messages behind" in brake.look(after))
        held = CombinedBrakes([brake], patience=0.5)
        with pytest.raises(Paused, match=f"group {group} is 30 live messages behind"):
            held.check(after)


def read_commits(job: Any, group: str) -> dict[int, int | None]:
    return dict(committed_offsets(job.properties, group, job.topic, range(2)))


def _look(job: Any, group: str, max_lag: int) -> str:
    return LiveLagBrake(job.properties, group, job.topic, 2, max_lag).look(START)
