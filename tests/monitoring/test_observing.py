"""Observations of real topics, recorded in a real ledger."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from backlogctl.clock import Deadline, utc_now
from backlogctl.errors import BacklogError, ClusterUnreachable
from backlogctl.kafka import admin as verbs
from backlogctl.kafka.errors import TopicMissing
from backlogctl.ledger import Ledger
from backlogctl.monitoring.doctor.facts import read_controller
from backlogctl.monitoring.offsets.gaps import Suspicion
from backlogctl.monitoring.offsets.lag import count_lag, read_tails
from backlogctl.monitoring.offsets.observation import Observation, observe_stream
from backlogctl.monitoring.offsets.sampler import take_sample
from backlogctl.monitoring.watch.look import StreamContext, assess_stream
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.values import Cause, Certainty, DatePiece, Gap, GapState
from tests.conftest import MakeTopic
from tests.kit.kafka import (
    StreamStub,
    commit,
    delete_group,
    delete_topic,
    expire_unread,
    join,
    move_log_start,
    properties_of,
    publish,
    set_offsets_raw,
    wait_until,
)
from tests.kit.transactions import leave_open, run_transactions
from tests.monitoring.live_watch import make_config, run_watch

PATIENT = 90.0  # seconds; what is awaited comes at once where the machine has time


def spans(gaps: tuple[Gap, ...]) -> list[tuple[Cause, Certainty, int, int | None, int | None]]:
    return [(gap.cause, gap.certainty, gap.partition, gap.start, gap.end) for gap in gaps]


def test_real_retention_is_seen_exactly_and_outlives_the_reset(
    properties: dict[str, str], topic: MakeTopic, group: str, ledger: Ledger
) -> None:
    name = topic(partitions=3, config={"retention.ms": "-1"})
    stream = StreamStub(name, group)
    before = utc_now()
    observe_stream(ledger, stream, properties)
    expire_unread(
        properties,
        name,
        group,
        old={0: 40, 1: 50, 2: 60},
        read={0: 10, 1: 50, 2: 5},
        young={0: 7, 1: 7, 2: 7},
    )
    observed = observe_stream(ledger, stream, properties)
    expected = [
        (Cause.EXPIRED, Certainty.EXACT, 0, 10, 40),
        (Cause.EXPIRED, Certainty.EXACT, 2, 5, 60),
    ]
    assert spans(observed.gaps) == expected
    for gap in observed.gaps:
        assert gap.first_time is not None
        assert gap.last_time is not None
        assert before <= gap.first_time <= gap.last_time
    status = assess_stream(
        observed.sample, "read_committed", ledger.samples.history("orders"), ledger.gaps.list()
    )
    assert (status.lag, status.lost, status.verdict) == (21, 85, "lost")
    # The consumer's own reset to the log start does not take the gap away, nor write it twice.
    commit(properties, group, name, {0: 42, 1: 52, 2: 62})
    later = observe_stream(ledger, stream, properties)
    assert later.gaps == ()
    ranged = tuple(gap for gap in ledger.gaps.list("orders") if gap.end is not None)
    assert spans(ranged) == expected


def test_an_operators_reset_is_a_skip_split_at_the_log_start(
    properties: dict[str, str], topic: MakeTopic, group: str, ledger: Ledger
) -> None:
    name = topic(partitions=2)
    stream = StreamStub(name, group)
    publish(properties, name, {0: 50, 1: 50})
    commit(properties, group, name, {0: 10, 1: 10})
    first = observe_stream(ledger, stream, properties)
    assert (first.gaps, first.findings) == ((), ())
    move_log_start(properties, name, {1: 20})
    set_offsets_raw(properties, group, name, {0: 30, 1: 45})
    observed = observe_stream(ledger, stream, properties, history=first.history)
    assert spans(observed.gaps) == [
        (Cause.SKIPPED, Certainty.POSSIBLE, 0, 10, 30),
        (Cause.EXPIRED, Certainty.POSSIBLE, 1, 10, 20),
        (Cause.SKIPPED, Certainty.POSSIBLE, 1, 20, 45),
    ]
    again = observe_stream(ledger, stream, properties, history=observed.history)
    assert (again.gaps, again.findings) == ((), ())
    # Rewound and undone: nothing new.
    set_offsets_raw(properties, group, name, {0: 5, 1: 25})
    rewound = observe_stream(ledger, stream, properties, history=again.history)
    set_offsets_raw(properties, group, name, {0: 30, 1: 45})
    undone = observe_stream(ledger, stream, properties, history=rewound.history)
    assert (rewound.gaps, undone.gaps) == ((), ())


def test_a_consumer_that_ran_between_two_samples_skipped_nothing(
    properties: dict[str, str], topic: MakeTopic, group: str, ledger: Ledger
) -> None:
    name = topic(partitions=1)
    publish(properties, name, {0: 50})
    commit(properties, group, name, {0: 10})
    stream = StreamStub(name, group)
    first = observe_stream(ledger, stream, properties)
    commit(properties, group, name, {0: 40})  # came, read and left
    second = observe_stream(ledger, stream, properties, history=first.history)
    assert (second.gaps, second.findings) == ((), ())


def test_fault_15_a_recreated_topic_is_reported(
    properties: dict[str, str], topic: MakeTopic, group: str, ledger: Ledger
) -> None:
    name = topic(partitions=1)
    stream = StreamStub(name, group)
    publish(properties, name, {0: 50})
    commit(properties, group, name, {0: 30})
    observe_stream(ledger, stream, properties)
    delete_topic(properties, name)
    with pytest.raises(TopicMissing, match=name):
        observe_stream(ledger, stream, properties)
    verbs.create_topic(properties, name, partitions=1)
    publish(properties, name, {0: 5})
    observed = observe_stream(ledger, stream, properties)
    assert [gap.cause for gap in observed.gaps] == [Cause.TOPIC_RECREATED]
    assert observe_stream(ledger, stream, properties).gaps == ()


def test_fault_21_a_commit_that_vanished_and_one_that_never_was(
    properties: dict[str, str], topic: MakeTopic, group: str, ledger: Ledger
) -> None:
    name = topic(partitions=1)
    stream = StreamStub(name, group)
    publish(properties, name, {0: 50})
    missing = observe_stream(ledger, stream, properties)
    assert missing.gaps == ledger.gaps.list() == ()
    assert [finding.kind for finding in missing.findings] == [Suspicion.NO_SUCH_GROUP]
    status = assess_stream(missing.sample, "read_committed", gaps=())
    assert (status.verdict, status.lag, status.lost) == ("unknown", None, None)
    set_offsets_raw(properties, group, topic(partitions=1), {0: 0})  # now there is such a group
    assert spans(observe_stream(ledger, stream, properties).gaps) == [
        (Cause.NEVER_COMMITTED, Certainty.REPORTED, 0, None, None)
    ]
    commit(properties, group, name, {0: 30})
    assert observe_stream(ledger, stream, properties).gaps == ()
    (never,) = ledger.gaps.list("orders")
    assert (never.state, "committed since" in never.reason) == (GapState.WAIVED, True)
    delete_group(properties, group)
    vanished = observe_stream(ledger, stream, properties)
    assert spans(vanished.gaps) == [(Cause.COMMIT_VANISHED, Certainty.REPORTED, 0, 30, None)]
    status = assess_stream(vanished.sample, "read_committed", gaps=ledger.gaps.list())
    assert (status.verdict, status.lag, status.lost) == ("unknown", None, None)
    causes = [gap.cause for gap in ledger.gaps.list("orders")]
    observe_stream(ledger, stream, properties)
    assert [gap.cause for gap in ledger.gaps.list("orders")] == causes


def test_fault_22_a_commit_beyond_the_end_is_an_alarm(
    properties: dict[str, str], topic: MakeTopic, group: str, ledger: Ledger
) -> None:
    name = topic(partitions=1)
    publish(properties, name, {0: 50})
    set_offsets_raw(properties, group, name, {0: 60})
    observed = observe_stream(ledger, StreamStub(name, group), properties)
    assert observed.gaps == ()
    assert [(f.kind, f.start, f.end, f.alarm) for f in observed.findings] == [
        (Suspicion.BEYOND_END, 50, 60, True)
    ]


def test_fault_22_an_end_that_is_wrong_for_a_moment_is_none(
    properties: dict[str, str], topic: MakeTopic, group: str, ledger: Ledger
) -> None:
    """As a broker's that has just been restarted."""
    name = topic(partitions=1)
    publish(properties, name, {0: 50})
    set_offsets_raw(properties, group, name, {0: 60})
    recovers = threading.Timer(0.5, publish, (properties, name, {0: 20}))
    recovers.start()
    observed = observe_stream(ledger, StreamStub(name, group), properties)
    recovers.join()
    assert (observed.findings, observed.sample.partitions[0].high) == ((), 70)


def test_fault_23_a_log_start_that_moves_meanwhile_is_reported_with_both_bounds(
    properties: dict[str, str],
    topic: MakeTopic,
    group: str,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It moves when the first gap is written."""
    name = topic(partitions=1)
    publish(properties, name, {0: 50})
    commit(properties, group, name, {0: 10})
    move_log_start(properties, name, {0: 20})

    write = ledger.gaps.record

    def move_and_write(gap: Gap, date: DatePiece | None = None) -> Gap:
        move_log_start(properties, name, {0: 35})
        return write(gap, date)

    monkeypatch.setattr(ledger.gaps, "record", move_and_write)
    observed = observe_stream(ledger, StreamStub(name, group), properties)
    assert spans(observed.gaps) == [(Cause.EXPIRED, Certainty.EXACT, 0, 10, 35)]
    assert [(f.kind, f.start, f.end) for f in observed.findings] == [(Suspicion.LOW_MOVED, 20, 35)]


def test_fault_20_control_records_are_neither_loss_nor_lag(
    properties: dict[str, str], topic: MakeTopic, group: str
) -> None:
    name = topic(partitions=2)
    for partition in (0, 1):
        run_transactions(properties, name, f"tx-{group}", (1, True), partition=partition)
    publish(properties, name, {1: 1})
    set_offsets_raw(properties, group, name, {0: 1, 1: 1})
    sample = take_sample(StreamStub(name, group), properties)
    assert [count_lag(part, "read_committed") for part in sample.partitions] == [1, 2]
    reading = read_tails(properties, sample, "read_committed", Deadline(PATIENT))
    assert (reading.tails, reading.empty) == (frozenset({0}), {0: (1, 2), 1: (1, 2)})
    assert reading.oldest.keys() == {1}
    around = StreamContext(tails=reading.tails)
    status = assess_stream(sample, "read_committed", around=around)
    assert [part.lag for part in status.partitions] == [0, 2]


def test_fault_24_an_open_transaction_parts_the_two_ends(
    properties: dict[str, str], topic: MakeTopic, group: str
) -> None:
    name = topic(partitions=1)
    publish(properties, name, {0: 5})
    leave_open(properties, name, f"tx-{group}", count=3)
    set_offsets_raw(properties, group, name, {0: 2})
    sample = take_sample(StreamStub(name, group), properties)
    assert [count_lag(p, "read_committed") for p in sample.partitions] == [3]
    assert [count_lag(p, "read_uncommitted") for p in sample.partitions] == [6]


def test_fault_19_holes_of_compaction_are_bounds_and_not_losses(
    properties: dict[str, str], topic: MakeTopic, group: str, ledger: Ledger
) -> None:
    name = topic(
        partitions=1,
        config={
            "cleanup.policy": "compact",
            "segment.ms": "500",
            "min.cleanable.dirty.ratio": "0.01",
            "max.compaction.lag.ms": "500",
        },
    )
    publish(properties, name, {0: 30})
    commit(properties, group, name, {0: 20})
    publish(properties, name, {0: 30})  # the same keys: the first thirty may be cleaned away
    observed = observe_stream(ledger, StreamStub(name, group), properties)
    assert (observed.gaps, observed.findings) == ((), ())


def test_members_make_the_sample_tell_them(
    properties: dict[str, str], topic: MakeTopic, group: str
) -> None:
    name = topic(partitions=1)
    member = join(properties, group, name)
    sample = take_sample(StreamStub(name, group), properties)
    assert sample.group_state == "stable"
    member.commit(offsets=[TopicPartition(name, 0, 0)], asynchronous=False)
    member.close()


def test_fault_28_an_observation_ends_within_its_limit(ledger: Ledger) -> None:
    with pytest.raises(ClusterUnreachable, match=r"127\.0\.0\.1:1 answered within 1 s"):
        observe_stream(ledger, StreamStub("t", "g"), properties_of("127.0.0.1:1"), Deadline(1.0))


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka.start(tmp_path / "kafka", heap="256m") as running:
        yield running


def test_fault_28_the_watch_goes_on_through_an_outage_and_says_it_once(
    own_kafka: EmbeddedKafka, group: str, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    properties = properties_of(own_kafka.bootstrap)
    verbs.create_topic(properties, "orders", partitions=1)
    publish(properties, "orders", {0: 3})
    set_offsets_raw(properties, group, "orders", {0: 1})
    config = make_config(properties, StreamStub("orders", group))
    seen: list[Observation] = []
    happened: list[BacklogError | None] = []  # of each look, what failed

    def see(observation: Observation) -> None:
        seen.append(observation)
        happened.append(None)

    def fail(_stream: object, error: BacklogError) -> None:
        happened.append(error)

    with run_watch(config, ledger, 0.2, on_observation=see, on_error=fail):
        wait_until(lambda: len(seen) >= 2)
        own_kafka.kill()
        wait_until(lambda: len(happened) > 2 and all(happened[-2:]))
        assert all(isinstance(error, ClusterUnreachable) for error in filter(None, happened))
        own_kafka.restart()
        count = len(seen)
        wait_until(lambda: len(seen) >= count + 2)
    said = [r.getMessage() for r in caplog.records if r.name == "backlogctl.monitoring.watch.loop"]
    # On a busy machine there may be more outages than this one: each is told once, and its end.
    outages = [list(errors) for failed, errors in groupby(happened, bool) if failed]
    assert max(map(len, outages)) >= 2
    away = [line for line in said if line.startswith("cluster main: ")]
    assert len(away) == 2 * sum(
        any(isinstance(error, ClusterUnreachable) for error in errors) for errors in outages
    )
    assert all(own_kafka.bootstrap in line for line in away[::2])
    assert set(away[1::2]) == {"cluster main: answers again"}
    rest = [line for line in said if line not in away]
    assert set(rest[1::2]) <= {"stream orders: answers again"}
    assert len(rest) % 2 == 0
    assert ledger.gaps.list("orders") == ()


def test_the_clock_and_the_version_of_the_controller_are_read(kafka: EmbeddedKafka) -> None:
    """It runs on this host. Kafka before 3.8 answers without what newer ones add."""
    found = read_controller(properties_of(kafka.bootstrap), Deadline(PATIENT))
    assert found is not None
    assert found.before - 60 < found.theirs < found.after + 60
    assert found.version >= (3, 7)
