"""What other people do around an offload and its archive: they purge it, remove its files, add
partitions, start groups; what was put back expires again; a second offload comes after the first.

Each message is handled once, or is in an archive that the printed commands put it back from.
"""

from __future__ import annotations

import http.client
import json
import math
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.cimpl import NewPartitions

from backlogctl.errors import PlanStale, Refused, StagingError, VerificationFailed
from backlogctl.fanout.launchers import Role
from backlogctl.kafka.admin import list_offsets
from backlogctl.kafka.clients import make_admin
from backlogctl.values import Gap, GapState
from tests.kit.kafka import join, move_log_start, set_config, set_offsets_raw, wait_until
from tests.kit.shop import Shop, offload
from tests.replay.expand.oracle import read_log
from tests.replay.expand.test_commits_and_retention import empty_partition, forget
from tests.replay.expand.world import PARTITIONS, WITHIN
from tests.replay.offload.conftest import MakeOffload
from tests.replay.offload.world import OffloadWorld, find_fence
from tests.replay.redrive.world import (
    KEEP,
    carry_out,
    keys_of,
    make_order,
    plan,
    publish,
    read_sent,
)
from tests.spark_backfill.archive.test_s3 import BUCKET, KEYS, endpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["endpoint"]
TOTAL = 30
HANDLED_WITHIN = 90.0


@pytest.fixture
def offloaded(empty_shop: Shop, spark: SparkSession) -> tuple[Shop, str]:
    """All of the topic is in an archive; there is no table to rebuild it from."""
    shop = empty_shop
    shop.write_config(source=None)
    set_config(shop.properties, shop.topic, KEEP)
    publish(shop, shop.topic, [make_order(number) for number in range(TOTAL)])
    return shop, offload(shop, spark)


def test_fault_130_an_archive_is_needed_for_what_is_lost_again(
    offloaded: tuple[Shop, str],
) -> None:
    """Put back, and expired unread: the archive has the only copy, and is not purged by itself."""
    shop, archive = offloaded
    source = f"archive:{archive}"
    shop.call("status")
    carry_out(shop, "--from", source)
    assert f"next: backlogctl archive purge {archive}" in shop.call("archive", "show", archive).out
    move_log_start(shop.properties, shop.topic, shop.read_ends())
    shop.call("gaps")
    shown = shop.call("archive", "show", archive, "--json").document
    lost = [gap.id for gap in shop.open().ledger.gaps.list() if gap.state is GapState.OPEN]
    assert (sorted(shown["needed_by"]), shown["expires_at"]) == (sorted(lost), None)
    told = shop.call("archive", "show", archive).out
    assert f"next: backlogctl plan redrive orders --from {source}" in told
    refused = shop.call("archive", "purge", archive, "--json", code=5).error
    assert f"{TOTAL} messages" in refused["message"]
    assert f"plan redrive orders --from {source}" in refused["hint"]
    assert carry_out(shop, "--from", source)["counts"]["staged"] == TOTAL
    assert keys_of(read_sent(shop)) == {str(number).encode(): 1 for number in range(TOTAL)}
    shop.call("archive", "purge", archive)


def test_an_archive_that_goes_while_it_is_put_back(offloaded: tuple[Shop, str]) -> None:
    """No purge takes it from a redrive, whatever is allowed; what is planned lies in the staging,
    so files that somebody removes are no loss then."""
    shop, archive = offloaded
    location = Path(shop.open().ledger.archives.get(archive).location)
    back = plan(shop, "--from", f"archive:{archive}")["id"]

    def require_kept() -> None:
        refused = shop.call("archive", "purge", archive, "--allow", "lose", "--json", code=5).error
        assert "about to put" in refused["message"]
        assert location.exists()

    require_kept()
    shop.call("approve", back, "--by", "Ada")
    require_kept()
    killed = shop.run("run", back, code=None, BACKLOG_CRASH_AT="p3.7.copy.before:1")
    assert killed.code != 0
    require_kept()
    shutil.rmtree(location)
    assert shop.call("archive", "verify", archive, "--json", code=1).error["code"] == "staging"
    shop.call("run", back)
    assert keys_of(read_sent(shop)) == {str(number).encode(): 1 for number in range(TOTAL)}
    assert {gap.state for gap in shop.open().ledger.gaps.list()} == {GapState.VERIFIED}
    shop.call("archive", "purge", archive)
    assert "purged" in shop.call("archive", "list").out


def test_an_archive_that_is_gone_is_closed_by_name(offloaded: tuple[Shop, str]) -> None:
    """Somebody removed it by hand: each command says so, and a purge ends its gaps."""
    shop, archive = offloaded
    shutil.rmtree(shop.open().ledger.archives.get(archive).location)
    refused = plan(shop, "--from", f"archive:{archive}", code=1)
    assert "bring it back from a copy" in refused["hint"]
    shop.call("archive", "purge", archive, code=5)
    shop.call("archive", "purge", archive, "--allow", "lose")
    assert {gap.state for gap in shop.open().ledger.gaps.list()} == {GapState.WAIVED}


def judge_handled(
    world: OffloadWorld, gone: Collection[tuple[int, int, str, int]] = ()
) -> list[str]:
    """Each message is handled once, and no gap is left open but of what is gone."""
    wanted = {(key, n) for key, many in world.produced.items() for n in range(many)}
    wanted -= {row[2:] for row in (*world.read_before, *gone)}
    world.set_speed(Role.ORIGINAL, None)

    def count() -> Counter[tuple[str, int]]:
        return Counter((line.key, line.sequence) for line in read_log(world))

    try:
        wait_until(lambda: wanted <= set(count()), HANDLED_WITHIN)
    except AssertionError:
        left = wanted - set(count())
        return [f"{len(left)} of {len(wanted)} messages were never handled: {min(left)}"]
    problems = []
    if twice := [message for message, many in count().items() if many > 1]:
        problems.append(f"{len(twice)} messages were handled twice: {min(twice)}")
    gaps = world.open().ledger.gaps.list(world.stream)
    left_open = [gap for gap in gaps if gap.state not in (GapState.VERIFIED, GapState.WAIVED)]
    untrue = [gap for gap in left_open if not any(_is_in(row, gap) for row in gone)]
    problems += [f"a gap is left: {gap}" for gap in untrue]
    if silent := [row for row in gone if not any(_is_in(row, gap) for gap in left_open)]:
        problems.append(f"{len(silent)} messages are gone, and in no gap: {min(silent)}")
    return problems


def _is_in(row: tuple[int, int, str, int], gap: Gap) -> bool:
    return gap.partition == row[0] and (gap.start or 0) <= row[1] < (gap.end or 0)


def add_partition(world: OffloadWorld) -> None:
    """Somebody makes the topic wider."""
    admin, wide = make_admin(world.properties), PARTITIONS + 1

    def count() -> int:
        return len(admin.list_topics(world.topic, timeout=10).topics[world.topic].partitions)

    admin.create_partitions([NewPartitions(world.topic, wide)])[world.topic].result(60)
    wait_until(lambda: count() == wide, what="the partition is there")


ARCHIVE = ["plan redrive orders --from archive:R", "approve P --by NAME", "run P"]


def test_fault_16_partitions_are_added_before_the_group_is_moved(idle: OffloadWorld) -> None:
    """It is taken back."""
    recovery = idle.plan_approved()
    idle.at("p5.4.recorded", lambda: add_partition(idle))
    with pytest.raises(PlanStale, match="partitions"):
        idle.run(recovery)
    assert idle.read_lows() == {0: 0, 1: 0}
    assert idle.follow(recovery) == ["cancel R"]
    assert judge_handled(idle) == []


@pytest.mark.parametrize("point", ["p5.5.forward", "p5.5.staged"])
def test_fault_16_partitions_are_added_after_it_goes_forward(
    idle: OffloadWorld, point: str
) -> None:
    """What is archived is deleted, and put back by keys that may belong elsewhere now; nothing of
    the new partition is deleted. The next run finds more partitions than planned."""
    recovery = idle.plan_approved()

    def widen() -> None:
        add_partition(idle)
        idle.publish(200)
        if point == "p5.5.forward":
            raise StagingError("away")

    idle.at(point, widen)
    if point == "p5.5.forward":
        with pytest.raises(StagingError, match="away"):
            idle.run(recovery)
    idle.run(recovery)
    assert idle.read_lows() == find_fence(idle, recovery)
    number, topic = PARTITIONS, idle.topic
    assert list_offsets(idle.properties, topic, [number], "earliest") == {number: 0}
    assert list_offsets(idle.properties, topic, [number], "latest")[number] > 0
    assert idle.follow(recovery) == ARCHIVE
    assert judge_handled(idle) == []


def test_a_group_without_commits_joins_before_the_deletion(idle: OffloadWorld) -> None:
    """It may read from the log's start: nothing is deleted until it has left."""
    recovery = idle.plan_approved()
    audit = f"{idle.group}-audit"
    members = []
    idle.at("p5.5.staged", lambda: members.append(join(idle.properties, audit, idle.topic)))
    with pytest.raises(Refused, match=audit):
        idle.run(recovery)
    assert idle.read_lows() == {0: 0, 1: 0}

    def leave(command: str) -> None:
        if command == "run R":
            members.pop().close()

    assert idle.follow(recovery, handle=leave) == ["run R", *ARCHIVE]
    assert judge_handled(idle) == []


def test_two_offloads_in_a_row_with_what_was_put_back_between(idle: OffloadWorld) -> None:
    """The second one archives unread copies of what the first one had archived."""
    idle.set_speed(Role.ORIGINAL, 2)
    first = idle.plan_approved()
    idle.run(first)
    half = find_fence(idle, first)[0] // 2
    idle.call("gaps")
    put_back(idle, first.id, "--offsets", f"0:0-{half}")
    idle.publish(200)
    second = idle.plan_approved()
    idle.run(second)
    told = idle.call("gaps", "orders").out
    for archive in (first.id, second.id):
        assert f"plan redrive orders --from archive:{archive}" in told
    put_back(idle, first.id)
    put_back(idle, second.id)
    assert judge_handled(idle) == []
    assert "plan redrive" not in idle.call("gaps", "orders").out


def put_back(world: OffloadWorld, archive: str, *words: str) -> None:
    said = world.call("plan", "redrive", "orders", "--from", f"archive:{archive}", *words, "--json")
    back = said.document["id"]
    world.call("approve", back, "--by", "Ada")
    world.call("run", back)


@pytest.mark.parametrize(
    ("what", "point", "way"),
    [
        ("group", "p5.2.stopped", "run"),
        ("one commit", "p5.4.recorded", "cancel"),
        ("group", "p5.5.moved", "run"),
        ("one commit", "p5.6.deleted", "cancel"),
    ],
)
def test_fault_131_commits_are_deleted_while_the_runner_is_dead(
    idle: OffloadWorld, what: str, point: str, way: str
) -> None:
    """They are where its consumers were stopped, or where it was moved to: without them consumers
    begin at the end."""
    begin_at_the_end(idle)
    recovery = idle.plan_approved()
    killed = idle.start("run", recovery.id, crash_at=point)
    killed.communicate(timeout=WITHIN)
    assert killed.returncode == -signal.SIGKILL
    forget(idle, what)
    idle.publish(40)
    idle.call(way, recovery.id)
    if idle.open().ledger.gaps.list_waiting():
        put_back(idle, recovery.id)
    assert judge_handled(idle) == []


def begin_at_the_end(world: OffloadWorld) -> None:
    """Where the group has no commit, as consumers do by default."""
    document = json.loads((world.directory / "backlog.yaml").read_text())
    environment = document["streams"]["orders"]["consumers"]["environment"]
    world.set_consumers(environment={**environment, "RESET": "latest"})


@pytest.mark.parametrize(("point", "way"), [("p5.4.recorded", "cancel"), ("p5.6.deleted", "run")])
def test_fault_131_retention_empties_a_partition_while_the_runner_is_dead(
    idle: OffloadWorld, point: str, way: str
) -> None:
    """The group goes on at the log start, and what was removed is the only gap that stays."""
    begin_at_the_end(idle)
    recovery = idle.plan_approved()
    killed = idle.start("run", recovery.id, crash_at=point)
    killed.communicate(timeout=WITHIN)
    assert killed.returncode == -signal.SIGKILL
    idle.publish(40)
    gone = {row for row in idle.read_topic() if row[0] == 0 and row not in idle.read_before}
    empty_partition(idle, 0)
    idle.publish(40)
    idle.call(way, recovery.id)
    if idle.open().ledger.gaps.list_waiting():
        put_back(idle, recovery.id)
    assert judge_handled(idle, gone=gone) == []


def test_fault_123_the_group_is_set_forward_after_it_was_moved(idle: OffloadWorld) -> None:
    """What it was set past comes from the log, and what is archived from the archive."""
    recovery = idle.plan_approved()

    def skip() -> None:
        idle.publish(100)
        at = find_fence(idle, recovery)[0] + 20
        set_offsets_raw(idle.properties, idle.group, idle.topic, {0: at})

    idle.at("p5.5.staged", skip)
    with pytest.raises(VerificationFailed, match="at most 20 messages are in no archive"):
        idle.run(recovery)
    at = find_fence(idle, recovery)[0]
    typed = idle.follow(recovery)
    assert typed[0] == "cancel R"
    assert {command for command in typed if command.startswith("plan ")} == {
        "plan redrive orders --from archive:R",
        f"plan redrive orders --from log --offsets 0:{at}-{at + 19}",
    }
    assert judge_handled(idle) == []


class Store(ThreadingHTTPServer):
    """Passes requests on to an object store, but for those that it refuses.

    Attributes:
        refused: by method, how many more requests for files of messages get which status.
    """

    daemon_threads = True

    def __init__(self, endpoint: str) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.behind = endpoint.removeprefix("http://")
        self.refused: dict[str, tuple[int, float]] = {}

    def find_refusal(self, method: str, path: str) -> int | None:
        """The status of this request, where it is refused."""
        status, left = self.refused.get(method, (0, 0.0))
        if left <= 0 or ".parquet" not in path:
            return None
        self.refused[method] = (status, left - 1)
        return status


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _pass(self) -> None:
        assert isinstance(self.server, Store)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status = self.server.find_refusal(self.command, self.path)
        if status is not None:
            self._answer(status, {}, b"")
            return
        with closing(http.client.HTTPConnection(self.server.behind, timeout=60)) as behind:
            behind.request(self.command, self.path, body, dict(self.headers.items()))
            answer = behind.getresponse()
            self._answer(answer.status, dict(answer.getheaders()), answer.read())

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass  # noqa: N815

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        size = headers.get("Content-Length") if self.command == "HEAD" else None
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", size or str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def store(endpoint: str) -> Iterator[Store]:
    server = Store(endpoint)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_object_store_that_refuses_for_a_while_and_for_ever(
    make_idle: MakeOffload, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For ever the run ends and says so, and the next one goes on; for a while nobody notices."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    world = make_idle(300)
    address, port = store.server_address[:2]
    conf = {
        "spark.hadoop.fs.s3a.endpoint": f"http://{address!s}:{port}",
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }
    spark = {"master": "local[2]", "conf": conf}

    def use_store(document: dict[str, Any]) -> None:
        document["staging"]["archive"] = f"s3a://{BUCKET}/offloads"
        document["spark"] = spark

    world.change_config(use_store)
    recovery = world.plan_approved()
    store.refused["PUT"] = (403, math.inf)
    failed = world.call("run", recovery.id, code=None)
    assert failed.code == StagingError.exit_code, failed
    assert world.read_lows() == {0: 0, 1: 0}
    assert not world.find_members()
    store.refused |= {"PUT": (500, 2), "GET": (500, 2)}
    assert world.follow(recovery) == ["run R", *ARCHIVE]
    assert {left for _, left in store.refused.values()} == {0}
    assert judge_handled(world) == []
