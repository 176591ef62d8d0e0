"""`backlogctl pass`: a message that the recovery's consumers cannot handle is kept, and passed."""

from __future__ import annotations

import json
import re
import shlex
import signal
import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from backlogctl.errors import Paused, Refused
from backlogctl.fanout.launchers import Role
from backlogctl.kafka import admin as verbs
from backlogctl.kafka.clients import make_producer
from backlogctl.replay.consumers.copy_group import PASSED
from backlogctl.replay.kinds.expand import closing
from backlogctl.values import Recovery
from tests.kit.kafka import read_all, wait_until
from tests.replay.expand.conftest import MakeWorld
from tests.replay.expand.oracle import await_handled, find_unhandled, read_log
from tests.replay.expand.test_outsiders import leave_in_the_drain
from tests.replay.expand.test_requests import SLOW
from tests.replay.expand.world import PARTITIONS, World


def find_next(world: World, recovery: Recovery) -> tuple[int, int]:
    """The first partition of the copy with something unread, and the offset of that."""
    topic, group = recovery.plan["temporary"]["topic"], recovery.plan["recovery_group"]
    numbers = range(recovery.plan["temporary"]["partitions"])
    commits = verbs.committed_offsets(world.properties, group, topic, numbers)
    for message in read_all(world.properties, topic, numbers):
        number, at = message.partition() or 0, message.offset() or 0
        if at >= (commits[number] or 0):
            return number, at
    raise AssertionError("nothing is unread")


def read_message(world: World, topic: str, place: tuple[int, int]) -> Any:
    found = [
        message
        for message in read_all(world.properties, topic, [place[0]])
        if message.offset() == place[1]
    ]
    return found[0]


def read_kept(world: World, recovery: Recovery, place: tuple[int, int]) -> dict[str, Any]:
    """The one row of its file."""
    folder = world.open().staging_of(recovery.id) / "passed"
    path = folder / f"partition={place[0]}" / f"offset-{place[1]}.parquet"
    (row,) = pq.ParquetFile(path).read().to_pylist()
    return dict(row)


def count_passed(world: World, recovery: Recovery) -> int:
    events = world.open().ledger.events.list(recovery.id)
    return sum(event.action == PASSED for event in events)


def pass_message(world: World, recovery: Recovery, place: tuple[int, int], **settings: Any) -> Any:
    words = ("--partition", str(place[0]), "--offset", str(place[1]))
    return world.call("pass", recovery.id, *words, **settings)


def test_fault_114_the_commands_of_a_stall_go_past_a_message_and_put_it_back(
    world: World,
) -> None:
    """Each command is the one that was printed, word for word."""
    recovery = world.plan_approved(rate=1)
    world.set_speed(Role.RECOVERY, SLOW)
    world.patch.setattr(closing, "STALL_SECONDS", 2.0)
    world.patch.setattr(closing, "LOOK_SECONDS", 0.5)
    world.at("p4.7.consumers.started", lambda: world.set_speed(Role.RECOVERY, 0))
    said: list[str] = []

    def pause() -> None:
        wait_until(lambda: "backlogctl pass" in world.told.getvalue(), 300.0, "it says so")
        said.extend(re.findall(r"`backlogctl ([^`]+)`", world.told.getvalue()))
        world.call(*shlex.split(said[0]))

    other = threading.Thread(target=pause)
    other.start()
    with pytest.raises(Paused):
        world.run(recovery)
    other.join()
    stopped, passes, goes_on = said[:3]
    assert (stopped, goes_on) == (f"pause {recovery.id}", f"resume {recovery.id}")
    place = int(passes.split()[3]), int(passes.split()[5])
    topic = recovery.plan["temporary"]["topic"]
    message = read_message(world, topic, place)
    told = world.call(*shlex.split(passes))
    assert "passed, and kept" in told.err + told.out
    row = read_kept(world, recovery, place)
    assert (row["offset"], row["key"], row["value"]) == (place[1], message.key(), message.value())
    assert (row["timestamp_type"], row["timestamp"]) == (0, message.timestamp()[1])

    world.set_speed(Role.RECOVERY, None)
    done = world.call(*shlex.split(goes_on))
    assert world.read(recovery).state == "verified"
    assert "1 message passed on purpose, and kept" in done.out + done.err
    await_handled(world, 5.0)
    mine = ((message.key() or b"").decode(), int(message.value() or 0))
    handled = {(line.key, line.sequence) for line in read_log(world)}
    assert mine not in handled
    assert find_unhandled(world)[0].startswith("1 of ")

    report = world.call("report", recovery.id).out.replace("\n", " ")
    assert f"--from passed:{recovery.id}" in report
    planned = json.loads(
        world.call("plan", "redrive", "orders", "--from", f"passed:{recovery.id}", "--json").out
    )
    assert planned["counts"]["staged"] == 1
    world.call("approve", planned["id"], "--by", "ada")
    world.call("run", planned["id"])
    await_handled(world)
    assert find_unhandled(world) == []


def test_fault_114_a_pass_that_is_killed_before_it_moves_the_group(world: World) -> None:
    """What was only kept and is handled later is not passed."""
    recovery = leave_in_the_drain(world, "paused")
    place = find_next(world, recovery)
    killed = pass_message(world, recovery, place, code=None, crash_at="p4.pass.kept")
    assert killed.code == -signal.SIGKILL
    world.set_speed(Role.RECOVERY, None)
    assert world.run(recovery, resumed=True).state == "verified"
    assert count_passed(world, recovery) == 0
    await_handled(world)
    assert find_unhandled(world) == []


def test_only_the_next_message_is_passed_and_not_put_back_where_the_group_reads_it_again(
    world: World,
) -> None:
    """And only of a recovery that rests; killed in between, the same again goes on."""
    recovery = leave_in_the_drain(world, "paused")
    assert world.call("run", recovery.id, "--json", code=4).error["code"] == "paused"
    place = find_next(world, recovery)
    for other, words in (
        ((place[0], place[1] + 3), f"the next unread message is at {place[1]}"),
        ((99, 0), "partitions are 0 to"),
    ):
        error = pass_message(world, recovery, other, code=None)
        assert words in error.err
        assert error.code in (Refused.exit_code, 2)
    with world.open().ledger.leases.hold(recovery.id):
        held = pass_message(world, recovery, place, code=None)
    assert f"backlogctl pause {recovery.id}" in held.err
    assert count_passed(world, recovery) == 0

    killed = pass_message(world, recovery, place, code=None, crash_at="p4.pass.moved")
    assert killed.code == -signal.SIGKILL
    pass_message(world, recovery, place)
    assert "was passed before" in pass_message(world, recovery, place).out
    assert count_passed(world, recovery) == 1
    world.set_speed(Role.RECOVERY, None)
    world.call("cancel", recovery.id, "--rewind")
    planned = ("plan", "redrive", "orders", "--from", f"passed:{recovery.id}")
    refused = world.call(*planned, code=Refused.exit_code)
    assert "put back it would be there twice" in " ".join(refused.err.split())
    await_handled(world)
    assert find_unhandled(world) == []


def test_a_record_is_kept_byte_for_byte(make_world: MakeWorld, tmp_path: Path) -> None:
    """What Parquet, or Python, would change: no key, an empty value, headers of one name, bytes."""
    from backlogctl.clock import Deadline
    from backlogctl.fanout.kept_record import fetch_record, keep_record

    world = make_world(start=False)  # what is of 1970 alone is deleted by retention
    headers: list[tuple[str, str | bytes | None]]
    headers = [("a", b"1"), ("a", None), ("b", b""), ("", b"\xff\x00")]
    producer = make_producer(world.properties, {})
    for value in (b"", None, b"\x00\xff" * 400_000):
        producer.produce(world.topic, value, None, partition=1, headers=headers, timestamp=7)
    assert producer.flush(60) == 0
    end = verbs.list_offsets(world.properties, world.topic, range(PARTITIONS), "latest")[1]
    for at, value in zip(range(end - 3, end), (b"", None, b"\x00\xff" * 400_000), strict=True):
        record = fetch_record(world.properties, world.topic, 1, at, Deadline(30.0))
        assert (record.key, record.value, list(record.headers)) == (None, value, headers)
        file = keep_record(record, tmp_path / "kept")
        (row,) = pq.ParquetFile(tmp_path / "kept" / file.path).read().to_pylist()
        assert (row["key"], row["value"], row["timestamp"]) == (None, value, 7)
        assert [(one["name"], one["value"]) for one in row["headers"]] == headers
        assert keep_record(record, tmp_path / "kept") == file
