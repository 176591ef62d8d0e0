"""Waves, canary, rate and brakes, also of the disk, on a real broker."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from backlogctl.clock import Deadline
from backlogctl.errors import (
    KafkaFailure,
    Paused,
    PlanStale,
    Refused,
    StagingError,
    VerificationFailed,
)
from backlogctl.kafka.admin import (
    committed_offsets,
    create_topic,
    describe_topic,
    list_offsets,
    read_metadata,
)
from backlogctl.kafka.clients import make_consumer, make_producer
from backlogctl.kafka.log_dirs import BrokerLogDirs, Disk, LogDirs
from backlogctl.kafka.room import Room, measure_room
from backlogctl.manifests import MESSAGE_BYTES, Manifest, read_chunk
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill.injection import job as targets
from backlogctl.spark_backfill.injection.brakes import (
    Brake,
    CombinedBrakes,
    DiskBrake,
    InjectionProgress,
    LiveLagBrake,
    read_canary_back,
)
from backlogctl.spark_backfill.injection.job import (
    MAX_TRANSACTION_SECONDS,
    count_fitting,
)
from backlogctl.spark_backfill.injection.producing import AttemptError, SlotProducer
from backlogctl.spark_backfill.injection.transactional import (
    ChunkMessages,
    ChunkResult,
    CommitOutcome,
    TransactionalWriter,
)
from backlogctl.spark_backfill.injection.waves import (
    ChunkOutcome,
    ChunkTask,
    LostWorker,
    inject_with,
)
from backlogctl.values import Chunk, DiskFloor
from tests.crash.runner import LocalChunkRunner
from tests.crash.scenario import judge
from tests.kit.kafka import delete_topic, move_log_start
from tests.spark_backfill.injection.conftest import MakeScenario
from tests.spark_backfill.injection.doing import (
    Stop,
    assert_same_set,
    await_condition,
    inject_here,
    open_transaction,
)


def test_fault_42_the_window_closes_in_mid_run_and_the_next_night_goes_on(
    scenario: MakeScenario,
) -> None:
    job = scenario(chunks=4).job
    night = True

    class Window(Brake):
        def look(self, progress: InjectionProgress) -> str:
            if not night:
                raise Paused("outside the window")
            return ""

    brakes = CombinedBrakes([Window()])
    results: list[ChunkResult] = []

    def close_after_two(progress: InjectionProgress) -> None:
        nonlocal night
        night = progress.wave < 2

    with pytest.raises(Paused):
        inject_here(job, brakes, on_chunk=results.append, on_progress=close_after_two)
    assert sum(r.count for r in results) == 300  # whole chunks only
    with pytest.raises(Paused):
        inject_here(job, brakes)
    night = True
    again = inject_here(job, brakes)
    assert (again.injected, again.skipped) == (300, 300)
    assert_same_set(job)


def test_a_pause_stops_between_two_chunks(scenario: MakeScenario) -> None:
    job = scenario().job
    with pytest.raises(Paused):
        inject_here(job, CombinedBrakes([Stop(1)]))
    assert judge(job).missing == 150
    inject_here(job)
    assert_same_set(job)


def test_the_rate_is_kept_and_no_transaction_stays_open_for_long(scenario: MakeScenario) -> None:
    job = scenario(chunks=2, messages=100, messages_per_second=200).job
    seconds: list[float] = []

    class Paced(TransactionalWriter):
        def _commit(self, producer: SlotProducer, sent: ChunkMessages) -> float:
            assert sent.pace is not None
            seconds.append(sent.chunk.count / sent.pace)
            return super()._commit(producer, sent)

    progress: list[InjectionProgress] = []
    began = time.monotonic()
    inject_here(job, writer=Paced, on_progress=progress.append)
    # 600 messages at 200/s; after the last wave nobody waits.
    assert time.monotonic() - began > 1.5
    # What it sets itself: how long a transaction is open beyond that is the machine's affair.
    assert len(seconds) == 6
    assert max(seconds) <= MAX_TRANSACTION_SECONDS
    assert [p.injected for p in progress] == [300, 600]
    assert progress[0].left == 300
    assert progress[-1].left == 0
    assert_same_set(job)


def test_a_low_rate_takes_fewer_slots_at_once(scenario: MakeScenario) -> None:
    job = scenario(chunks=1, messages=40, messages_per_second=15).job
    progress: list[InjectionProgress] = []

    def stop(at: InjectionProgress) -> None:
        progress.append(at)

    with pytest.raises(Paused):
        inject_here(job, CombinedBrakes([Stop(1)]), on_progress=stop)
    # 15/s for 4 s are 60 messages: one chunk of 40, not three.
    assert [p.injected for p in progress] == [40]


def test_fault_12_below_min_insync_replicas_pauses_with_no_partial_chunk(
    scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A single broker asks for no more replicas than there are: its refusal is played.
    job = scenario(slots=1, config={"min.insync.replicas": "2"}, patience=0.5).job

    class Refusing(TransactionalWriter):
        def _produce_record(self, producer: SlotProducer, sent: ChunkMessages) -> None:
            error = KafkaFailure("NOT_ENOUGH_REPLICAS", retryable=True)
            raise AttemptError(error, abortable=True)

    def lose_a_replica(*arguments: Any) -> Any:
        metadata = read_metadata(*arguments)
        for topic in metadata.topics.values():
            for partition in topic.partitions.values():
                partition.replicas = [1, 2]
        return metadata

    monkeypatch.setattr(targets, "read_metadata", lose_a_replica)
    quick = replace(job, transaction_timeout_ms=1500)
    with pytest.raises(Paused, match=r"min\.insync\.replicas=2"):
        inject_here(quick, writer=Refusing)
    assert judge(job).missing == 100
    inject_here(job)
    assert_same_set(job)


def test_fault_15_a_topic_that_was_deleted_or_recreated_is_refused(scenario: MakeScenario) -> None:
    job = scenario().job
    delete_topic(job.properties, job.topic)
    with pytest.raises(PlanStale, match="deleted"):
        inject_here(job)
    create_topic(job.properties, job.topic, partitions=3)
    with pytest.raises(PlanStale, match="recreated"):
        inject_here(job)
    assert sum(list_offsets(job.properties, job.topic, range(3), "latest").values()) == 0


def test_fault_15_a_topic_that_is_recreated_in_mid_run_does_not_get_the_rest(
    scenario: MakeScenario,
) -> None:
    job = scenario().job

    def recreate(progress: InjectionProgress) -> None:
        delete_topic(job.properties, job.topic)
        create_topic(job.properties, job.topic, partitions=3)

    with pytest.raises(PlanStale, match="recreated"):
        inject_here(job, on_progress=recreate)
    assert sum(list_offsets(job.properties, job.topic, range(3), "latest").values()) == 0


def test_fault_16_partitions_added_after_the_plan_are_refused(
    scenario: MakeScenario, admin: AdminClient
) -> None:
    job = scenario().job
    admin.create_partitions([NewPartitions(job.topic, 4)])[job.topic].result(30)
    await_condition(lambda: describe_topic(job.properties, job.topic).partitions == 4)
    with pytest.raises(PlanStale, match="4 partitions now"):
        inject_here(job)
    assert sum(list_offsets(job.properties, job.topic, range(4), "latest").values()) == 0


def test_fault_18_old_messages_are_sent_with_the_time_of_now(scenario: MakeScenario) -> None:
    # The original times are years ago; with them retention would delete the messages at once.
    job = scenario(slots=1, chunks=1, config={"retention.ms": "3600000", "segment.ms": "1000"}).job
    before = time.time() * 1000 - 60_000
    inject_here(job)
    consumer = make_consumer(job.properties, group_id="times")
    from confluent_kafka import TopicPartition

    consumer.assign([TopicPartition(job.topic, 0, 0)])
    seen: list[Any] = []

    def read_more() -> bool:
        seen.extend(consumer.consume(50, 0.2))
        return len(seen) >= 50

    await_condition(read_more)
    consumer.close()
    assert all(message.timestamp()[1] >= before for message in seen)
    originals = {dict(message.headers())["backlog-original-time"] for message in seen}
    assert originals == {b"2026-01-01T00:00:00.000000Z"}
    assert_same_set(job)


def test_a_damaged_staged_file_stops_the_run_before_its_chunk(scenario: MakeScenario) -> None:
    job = scenario(slots=1, chunks=2).job
    (job.directory / job.manifest.chunks[1].path).write_bytes(b"damaged")
    with pytest.raises(StagingError):
        inject_here(job)
    assert judge(replace(job, manifest=_only(job, 1))).is_same_set


def _only(job: Any, chunks: int) -> Any:
    return replace(job.manifest, chunks=job.manifest.chunks[:chunks])


def test_a_manifest_of_another_recovery_is_refused(scenario: MakeScenario) -> None:
    job = scenario().job
    with pytest.raises(Refused, match="the manifest is of recovery"):
        inject_here(replace(job, recovery_id="r-20261121-0009"))


def test_secrets_are_not_in_the_repr(scenario: MakeScenario) -> None:
    job = scenario(slots=1, chunks=1).job
    hidden = replace(job, properties={**job.properties, "sasl.password": "hunter2"})
    assert "hunter2" not in repr(hidden)
    assert "hunter2" not in repr(hidden.writer_settings())


def test_skipped_chunks_are_told_as_such(scenario: MakeScenario) -> None:
    job = scenario(slots=1).job
    with pytest.raises(Paused):
        inject_here(job, CombinedBrakes([Stop(1)]))
    results: list[ChunkResult] = []
    inject_here(job, on_chunk=results.append)
    assert [r.outcome for r in results] == [CommitOutcome.SKIPPED, CommitOutcome.INJECTED]


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


MIB = 2**20
PLAIN: Mapping[str, str] = {"bootstrap.servers": "127.0.0.1:1"}


def make_manifest(slots: int, chunks: int, count: int, size: int) -> Manifest:
    made = tuple(
        Chunk(slot, number, count, size, "a" * 64, f"m/{slot}/{number}", f"i/{slot}/{number}")
        for slot in range(slots)
        for number in range(chunks)
    )
    return Manifest("r-1", "orders", made, {})


def answer(*usable: int | None) -> LogDirs:
    """Brokers of 100 MiB that hold both partitions."""
    return LogDirs(
        tuple(BrokerLogDirs(n, left, 100 * MIB, {0: 1, 1: 1}) for n, left in enumerate(usable))
    )


def make_brake(*answers: LogDirs, floor: str = "0%", say: Any = lambda _: None) -> DiskBrake:
    """Gets one answer after another, the last one again and again."""
    left = list(answers)

    def read(_: Mapping[str, Any], __: str, ___: Deadline) -> LogDirs:
        return left.pop(0) if len(left) > 1 else left[0]

    return DiskBrake(PLAIN, "orders", DiskFloor.parse(floor), say, read)


def coming(**sizes: int) -> InjectionProgress:
    """What comes next: `p0=` bytes of partition 0."""
    slots = {int(name.removeprefix("p")): size for name, size in sizes.items()}
    return InjectionProgress(injected=0, skipped=0, total=1000, next=slots)


def test_a_wave_takes_no_more_chunks_than_there_is_room_for() -> None:
    wave = make_manifest(slots=2, chunks=10, count=100, size=MIB).list_slots()
    chunk = MIB + 100 * MESSAGE_BYTES
    none = DiskFloor.parse("0%")
    for chunks, fitting in ((0, {0: 0, 1: 0}), (1, {0: 1, 1: 0}), (5, {0: 3, 1: 2})):
        room = measure_room(answer(90 * MIB, chunks * chunk), none)
        assert count_fitting(wave, room) == fitting
    # Each broker gets what lies there.
    apart = LogDirs(
        (
            BrokerLogDirs(1, 2 * chunk, 100 * MIB, {0: 1}),
            BrokerLogDirs(2, 4 * chunk, 100 * MIB, {1: 1}),
            BrokerLogDirs(3, 0, 100 * MIB, {}),
        )
    )
    assert count_fitting(wave, measure_room(apart, none)) == {0: 2, 1: 4}
    assert count_fitting(wave, Room(unknown="not granted")) == {0: 10, 1: 10}


def test_a_wave_whose_worker_is_lost_is_tried_again_with_the_room_that_is_left(
    scenario: MakeScenario,
) -> None:
    """All of it was committed, and nobody heard of it: one chunk of each slot after the other."""
    job = scenario(slots=2, chunks=3, wave_chunks=20).job
    waves: list[list[int]] = []

    class Losing(LocalChunkRunner):
        def run_wave(self, tasks: Sequence[ChunkTask]) -> list[ChunkOutcome]:
            waves.append([len(task.chunks) for task in tasks])
            outcomes = super().run_wave(tasks)
            if len(waves) == 1:
                raise LostWorker("its executor was lost", subject="a wave")
            return outcomes

    class Filling:
        def check(self, progress: InjectionProgress) -> Room:
            left = 0 if len(waves) == 1 else 80 * MIB  # after that somebody has made room
            return measure_room(answer(90 * MIB, left), DiskFloor.parse("0%"))

    inject_with(Losing(TransactionalWriter(job.writer_settings())), job, Filling())
    assert waves[:2] == [[3, 3], [1, 1]]
    assert_same_set(job)


def test_a_floor_is_a_share_of_each_disk_or_a_size() -> None:
    for text, size in (("5%", 5 * MIB), ("0%", 0), ("2 MB", 2_000_000), ("512 B", 512)):
        assert DiskFloor.parse(text).count_bytes(100 * MIB) == size


def test_fault_127_it_holds_where_no_next_chunk_fits_above_the_floor() -> None:
    brake = make_brake(answer(90 * MIB, 7 * MIB), floor="5%")
    assert brake.look(coming(p0=2 * MIB, p1=2 * MIB)) == ""
    assert brake.look(coming(p0=9 * MIB, p1=2 * MIB)) == "", "one of them fits"
    why = brake.look(coming(p0=9 * MIB, p1=3 * MIB))
    assert "the disk of broker 1 has 7.3 MB left, of which 5.2 MB stay free" in why
    assert "the next messages may take 3.1 MB" in why
    assert brake.look(coming()) == "", "nothing is sent now"


def test_a_disk_that_holds_nothing_of_the_topic_brakes_nothing() -> None:
    """One of two disks of a broker is full, and the other has the partition."""
    full, wide = Disk(0, 100 * MIB), Disk(50 * MIB, 100 * MIB, frozenset({0}))
    both = BrokerLogDirs(1, 50 * MIB, 200 * MIB, {0: 1}, several=(full, wide))
    assert make_brake(LogDirs((both,))).look(coming(p0=MIB)) == ""
    swapped = (replace(full, partitions=frozenset({0})), replace(wide, partitions=frozenset()))
    assert make_brake(LogDirs((replace(both, several=swapped),))).look(coming(p0=MIB))


def test_what_brokers_never_told_is_said_and_what_they_told_is_waited_for() -> None:
    said: list[str] = []
    denied = LogDirs(None, "not granted")
    for unknown in (answer(None), denied):
        brake = make_brake(unknown, say=said.append)
        assert brake.look(coming(p0=MIB)) == brake.look(coming(p0=MIB)) == ""
    assert len(said) == 2, "once each"
    assert "Kafka before 3.3" in said[0]
    assert "not granted" in said[1]
    away = make_brake(answer(90 * MIB), denied, answer(90 * MIB))
    told = [away.look(coming(p0=MIB)) for _ in range(3)]
    assert told[::2] == ["", ""]
    assert "is not known: not granted" in told[1]


def test_a_broker_that_goes_with_its_full_disk_makes_no_room() -> None:
    full, wide = BrokerLogDirs(1, 0, 90 * MIB, {0: 1}), BrokerLogDirs(2, 50 * MIB, 90 * MIB, {1: 1})
    moved = LogDirs((replace(wide, partitions={0: 1, 1: 1}), replace(full, partitions={})))
    brake = make_brake(LogDirs((full, wide)), LogDirs((wide,)), moved, LogDirs((wide,)))
    told = [brake.look(coming(p0=MIB)) for _ in range(4)]
    assert "disk of broker 1" in told[0]
    assert "disks of brokers 1 have cannot be read: they are away" in told[1]
    assert told[2:] == ["", ""], "it has none of the topic any more"


def test_a_real_broker_whose_disk_is_nearly_full(tmp_path: Path) -> None:
    with EmbeddedKafka.start(tmp_path, disk_bytes=96 * MIB) as kafka:
        client = kafka.client_properties
        create_topic(client, "orders", partitions=1, replication=1)
        brake = DiskBrake(client, "orders", DiskFloor.parse("5%"))
        assert brake.look(coming(p0=16 * MIB)) == ""
        producer = make_producer(client, {})
        for _ in range(165):
            producer.produce("orders", secrets.token_bytes(MIB // 2))
            producer.poll(0)
        assert producer.flush(60) == 0
        assert "the next messages may take" in brake.look(coming(p0=16 * MIB))
