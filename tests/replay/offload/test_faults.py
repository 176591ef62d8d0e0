"""What goes wrong while an offload is at work; the numbers are those of docs/faults.md."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from backlogctl.errors import (
    ClusterUnreachable,
    LeaseHeld,
    PlanStale,
    Refused,
    StagingError,
    VerificationFailed,
)
from backlogctl.fanout.launchers import Role
from backlogctl.fanout.quiet import GroupStillCommits
from backlogctl.kafka.admin import create_topic, list_offsets
from backlogctl.kafka.clients import make_producer
from backlogctl.kafka.errors import GroupActive
from backlogctl.replay.engine.brakes import PausedBecause
from backlogctl.spark_backfill.archive import writing
from backlogctl.spark_backfill.archive.batches import write_batch
from backlogctl.spark_backfill.archive.place import ArchiveFull, ArchivePlace
from backlogctl.spark_backfill.archive.writing import find_moved_log_starts
from tests.kit.kafka import delete_topic, move_log_start, set_offsets_raw, wait_until
from tests.kit.recoveries import change_ledger
from tests.replay.offload.conftest import READ, MakeOffload
from tests.replay.offload.world import (
    OffloadWorld,
    await_fresh,
    find_fence,
    find_place,
    judge_gaps,
    judge_offload,
    read_archive,
)

PAST = "2020-01-01T00:00:00.000000Z"


def test_fault_02_a_runner_that_wakes_up_late_harms_nothing(idle: OffloadWorld) -> None:
    """It was stopped in the archive; another one took over and came to the end."""
    recovery = idle.plan_approved()
    first = idle.start("run", recovery.id, "--json")
    part = find_place(recovery) / "_parts" / "000001.json"
    wait_until(part.exists, what="it archives")
    idle.freeze(first, recovery)
    with pytest.raises(LeaseHeld):
        idle.run(recovery)
    change_ledger(idle.open(), f"UPDATE backlog_recoveries SET lease_until = '{PAST}'")
    idle.run(recovery)
    before = sorted(str(path) for path in find_place(recovery).rglob("*"))
    assert judge_offload(idle, recovery, processes=False) == []
    first.send_signal(signal.SIGCONT)
    out, err = first.communicate(timeout=400)
    # It may also find that the brokers dropped its connections meanwhile.
    assert first.returncode in (LeaseHeld.exit_code, ClusterUnreachable.exit_code), (out, err)
    assert sorted(str(path) for path in find_place(recovery).rglob("*")) == before
    # Its Spark ends a moment after it.
    wait_until(
        lambda: not idle.list_processes(without=(Role.ORIGINAL,)), what="its processes have ended"
    )
    assert judge_offload(idle, recovery) == []
    await_fresh(idle, 40)


def test_fault_12_no_space_in_the_archives_place(
    idle: OffloadWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovery = idle.plan_approved()
    real = write_batch

    def fill(*args: Any) -> Any:
        raise ArchiveFull("no space is left in the archive's place", subject="it")

    monkeypatch.setattr(writing, "write_batch", fill)
    with pytest.raises(PausedBecause, match="no space is left") as caught:
        idle.run(recovery)
    assert "consumers stay stopped" in caught.value.hint
    assert idle.read(recovery).state == "paused"
    assert idle.read_lows() == {0: 0, 1: 0}
    monkeypatch.setattr(writing, "write_batch", real)
    idle.run(recovery)
    assert judge_offload(idle, recovery) == []


def test_fault_15_the_topic_was_made_anew(idle: OffloadWorld) -> None:
    recovery = idle.plan_approved()
    delete_topic(idle.properties, idle.topic)
    create_topic(idle.properties, idle.topic, partitions=2)
    with pytest.raises(PlanStale, match="created again"):
        idle.run(recovery)
    assert idle.read(recovery).state == "approved"


def test_fault_19_holes_that_compaction_left_are_no_losses(
    make_idle: MakeOffload, spark: object
) -> None:
    del spark
    eager = {"min.cleanable.dirty.ratio": "0.001", "max.compaction.lag.ms": "100"}
    world = make_idle(400, {"cleanup.policy": "compact,delete", **eager})
    wait_until(lambda: len(world.read_topic()) < 300, what="it is compacted")
    recovery = world.plan_approved()
    assert any("compacted" in text for text in recovery.plan["warnings"])
    world.run(recovery)
    archived = read_archive(recovery)
    offsets = sum(item["unread"] for item in recovery.plan["partitions"])
    assert 0 < len(archived) < offsets
    newest = {key: count - 1 for key, count in world.produced.items()}
    assert {(key, number) for _, _, key, number in archived} >= set(newest.items())
    assert judge_gaps(world, recovery, archived) == []


def test_fault_20_an_open_transaction_across_the_fence_keeps_its_messages(
    make_idle: MakeOffload, spark: object
) -> None:
    """Aborted messages are not archived, and nothing of an open transaction is deleted."""
    del spark
    world = make_idle(200)
    abort(world)
    producer = make_producer(world.properties, transactional_id=f"open-{world.topic}")
    producer.init_transactions(90)
    producer.begin_transaction()
    for number in range(30):
        producer.produce(world.topic, str(number), "open", number % 2)
    assert producer.flush(90) == 0
    world.publish(100)  # behind the open transaction
    recovery = world.plan_approved(allow=("frees-nothing",))
    assert any("open transactions" in text for text in recovery.plan["warnings"])
    world.run(recovery)
    producer.commit_transaction(90)
    world.produced["open"] = 30
    keys = {key for _, _, key, _ in read_archive(recovery)}
    assert "aborted" not in keys
    assert "open" not in keys
    assert judge_offload(world, recovery) == []
    assert {key for _, _, key, _ in world.read_topic()} >= {"open"}


def abort(world: OffloadWorld) -> None:
    """Messages that no reader gets, and control records."""
    producer = make_producer(world.properties, transactional_id=f"aborted-{world.topic}")
    producer.init_transactions(90)
    producer.begin_transaction()
    for number in range(20):
        producer.produce(world.topic, str(number), "aborted", number % 2)
    producer.flush(90)
    producer.abort_transaction(90)


def test_fault_25_a_group_that_does_not_get_empty(idle: OffloadWorld) -> None:
    idle.stop_within = "2s"
    idle.write_config()
    recovery = idle.plan_approved()
    member = idle.start_intruder()
    wait_until(lambda: "order-service-intruder" in idle.find_members())
    with pytest.raises(GroupActive, match="order-service-intruder at"):
        idle.run(recovery)
    assert idle.read(recovery).state == "failed"
    assert not find_place(recovery).exists()
    member.terminate()
    member.wait(90)
    wait_until(lambda: not idle.find_members(), what="the group is empty")
    idle.publish(200)
    idle.run(recovery)
    assert judge_offload(idle, recovery) == []


@pytest.mark.parametrize("point", ["p5.3.fenced", "p5.5.gaps"])
def test_fault_25_somebody_starts_a_consumer_meanwhile(idle: OffloadWorld, point: str) -> None:
    recovery = idle.plan_approved()

    def start() -> None:
        idle.start_intruder()
        wait_until(lambda: "order-service-intruder" in idle.find_members())

    idle.at(point, start)
    with pytest.raises(GroupActive, match="order-service-intruder at"):
        idle.run(recovery)
    assert idle.read_lows() == {0: 0, 1: 0}


def test_fault_66_a_consumer_that_is_no_member_still_commits(world: OffloadWorld) -> None:
    recovery = world.plan_approved()
    with (
        world.silent_intruder("p5.2.stopped"),
        pytest.raises(GroupStillCommits, match="still running"),
    ):
        world.run(recovery)
    assert world.read_lows() == {0: 0, 1: 0}


@pytest.mark.parametrize("to", [0, 50])
def test_fault_69_the_group_is_reset_before_it_is_moved(idle: OffloadWorld, to: int) -> None:
    recovery = idle.plan_approved()
    idle.at(
        "p5.4.recorded",
        lambda: set_offsets_raw(idle.properties, idle.group, idle.topic, {0: to}),
    )
    with pytest.raises(Refused, match=rf"partition 0 from {READ} to {to}"):
        idle.run(recovery)
    assert idle.read_lows() == {0: 0, 1: 0}
    assert idle.read_commits() == {0: to, 1: READ}
    assert idle.open().ledger.gaps.list("orders") == ()
    assert idle.cancel(recovery).state == "cancelled"


def test_fault_69_the_group_is_reset_before_the_deletion(idle: OffloadWorld) -> None:
    """Nothing is deleted that it has to read again; a cancel starts its consumers."""
    recovery = idle.plan_approved()
    idle.at(
        "p5.5.staged",
        lambda: set_offsets_raw(idle.properties, idle.group, idle.topic, {0: READ}),
    )
    with pytest.raises(Refused, match="set its committed offsets back"):
        idle.run(recovery)
    assert idle.read_lows() == {0: 0, 1: 0}
    assert idle.cancel(recovery).state == "cancelled"
    assert idle.read_lows() == {0: 0, 1: 0}
    wait_until(lambda: len(idle.find_members()) > 0, what="consumers are back")
    states = {gap.partition: gap.state for gap in idle.open().ledger.gaps.list("orders")}
    assert states == {0: "waived", 1: "staged"}, "what it reads again is not put back as well"


def test_fault_69_the_group_is_set_forward_after_it_was_moved(idle: OffloadWorld) -> None:
    """What lies between the fence and where it was set is a gap, and no success."""
    recovery = idle.plan_approved()
    past = 20

    def skip() -> None:
        idle.publish(200)
        at = find_fence(idle, recovery)[0] + past
        set_offsets_raw(idle.properties, idle.group, idle.topic, {0: at})

    idle.at("p5.5.staged", skip)
    with pytest.raises(VerificationFailed, match=f"at most {past} messages are in no archive"):
        idle.run(recovery)
    fence = find_fence(idle, recovery)
    assert idle.read_lows() == fence
    (gap,) = [gap for gap in idle.open().ledger.gaps.list("orders") if gap.archive is None]
    assert (gap.partition, gap.start, gap.end) == (0, fence[0], fence[0] + past)
    assert (gap.cause, gap.certainty, gap.state) == ("skipped", "exact", "open")
    wait_until(lambda: len(idle.find_members()) > 0, what="consumers are back")
    assert idle.cancel(recovery).state == "cancelled"
    assert (find_place(recovery) / "manifest.json").exists()


def test_a_new_group_behind_the_fence_keeps_its_messages(idle: OffloadWorld) -> None:
    recovery = idle.plan_approved()
    audit = f"{idle.group}-audit"
    idle.at(
        "p5.5.staged",
        lambda: set_offsets_raw(idle.properties, audit, idle.topic, {0: 3}),
    )
    with pytest.raises(Refused, match=audit):
        idle.run(recovery)
    assert idle.read_lows() == {0: 0, 1: 0}
    set_offsets_raw(idle.properties, audit, idle.topic, find_fence(idle, recovery))
    idle.run(recovery)
    assert judge_offload(idle, recovery) == []


def test_retention_that_is_faster_than_the_archive_is_a_gap(
    idle: OffloadWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovery = idle.plan_approved()
    once = threading.Event()
    real = find_moved_log_starts

    def expire(*args: Any) -> Any:
        if not once.is_set():
            once.set()
            move_log_start(idle.properties, idle.topic, {0: 100})
        return real(*args)

    monkeypatch.setattr(writing, "find_moved_log_starts", expire)
    idle.run(recovery)
    (lost,) = [gap for gap in idle.open().ledger.gaps.list("orders") if gap.archive is None]
    assert (lost.cause, lost.certainty) == ("expired", "exact")
    assert (lost.partition, lost.start, lost.end) == (0, READ, 100)
    assert "retention was faster" in idle.told.getvalue()
    archived = read_archive(recovery)
    assert min(offset for partition, offset, *_ in archived if partition == 0) == 100
    assert [p for p in judge_gaps(idle, recovery, archived) if lost.id not in p] == []
    verified = idle.open().ledger.steps.get(recovery.id, "verify")
    assert verified is not None
    assert verified.detail["offsets"] == len(archived), "what expired was not taken off by it"
    assert (verified.detail["expired"], verified.detail["moves"]) == (100 - READ, True)


def test_a_place_that_cannot_be_used_stops_nobody(
    make_world: MakeOffload, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(200)
    recovery = world.plan_approved()

    def refuse(*_: object) -> None:
        raise StagingError("it is read only", subject="the place")

    monkeypatch.setattr(ArchivePlace, "list_files", refuse)
    before = world.find_members()
    with pytest.raises(StagingError, match="read only"):
        world.run(recovery)
    assert world.find_members() == before != set()
    assert "stop_consumers" not in {s.step for s in world.open().ledger.steps.list(recovery.id)}


def test_all_was_read_since_the_plan(idle: OffloadWorld) -> None:
    recovery = idle.plan_approved()
    ends = list_offsets(idle.properties, idle.topic, range(2), "latest")
    set_offsets_raw(idle.properties, idle.group, idle.topic, ends)
    assert idle.run(recovery).state == "verified"
    assert read_archive(recovery) == []
    assert idle.read_lows() == ends
    # It was set there, over what it had not read: that is no work of the offload.
    assert {gap.cause for gap in idle.open().ledger.gaps.list("orders")} == {"skipped"}


def test_discarded_without_an_archive_it_is_an_open_gap(idle: OffloadWorld) -> None:
    recovery = idle.plan_approved(discard=True, allow=("lose",))
    done = idle.run(recovery)
    assert done.state == "verified"
    fence = find_fence(idle, recovery)
    assert idle.read_lows() == fence
    gaps = idle.open().ledger.gaps.list("orders")
    assert [(g.partition, g.start, g.end) for g in gaps] == [
        (number, READ, at) for number, at in fence.items()
    ]
    assert {(g.cause, g.state, g.archive) for g in gaps} == {("discarded", "open", None)}
    await_fresh(idle, 40)
