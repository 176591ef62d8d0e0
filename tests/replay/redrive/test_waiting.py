"""What waits in an archive is put back from there: by bounds, by night, from an object store."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
import sqlalchemy
from confluent_kafka.cimpl import NewPartitions
from rich.console import Console

from backlogctl.archive_manifest import ArchivedRange
from backlogctl.clock import utc_now
from backlogctl.errors import UsageError
from backlogctl.kafka.clients import make_admin
from backlogctl.ledger import ArchiveRecord
from backlogctl.monitoring.verdict.status import Verdict
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.next_commands import suggest_plans
from backlogctl.replay.engine.plan import name_origin
from backlogctl.replay.injection.archived import (
    find_archive_of,
    list_archived,
    suggest_redrive,
)
from backlogctl.replay.kinds.rebuild.losses import explain_unrebuildable, list_repairable
from backlogctl.replay.kinds.redrive.plan import RedriveOptions, read_keys
from backlogctl.replay.kinds.redrive.sources import (
    choose_ranges,
    parse_offsets,
    require_bounds,
    skip_before,
)
from backlogctl.replay.runbooks.detection import choose_actions
from backlogctl.replay.runbooks.nights import Tonight, _count_gaps, find_night_work, has_nights
from backlogctl.replay.runbooks.work import carry_on, list_waiting_work
from backlogctl.values import Cause, Gap, GapState, OffsetRange, RecoveryState
from backlogctl_delivery import stamps
from tests.kit.kafka import commit, move_log_start, read_all, set_config, wait_until
from tests.kit.ledger import NOON, create_recovery, make_gap
from tests.kit.shop import (
    DONE,
    LOCAL_SPARK,
    PARTITIONS,
    SOURCE,
    Shop,
    call_main,
    count_by_partition,
    offload,
    place,
)
from tests.replay.redrive.world import UNREAD, Message, carry_out, plain_shop, plan, read_own, run
from tests.spark_backfill.archive import archiving
from tests.spark_backfill.archive.test_s3 import BUCKET, KEYS, endpoint
from tests.spark_backfill.world import (
    ORDERS,
    fill_table,
    make_order,
    place_key,
    publish_orders,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)


__all__ = ["endpoint", "plain_shop"]
SETTLED = {GapState.VERIFIED}


def list_unread(messages: list[Message]) -> list[Message]:
    handled = count_by_partition(range(DONE))
    return [
        item
        for number in range(PARTITIONS)
        for item in [one for one in messages if one[0] == number][handled[number] :]
    ]


def list_states(shop: Shop) -> set[GapState]:
    return {gap.state for gap in shop.open().ledger.gaps.list()}


def test_put_back_expired_unread_and_put_back_again(plain_shop: Shop, spark: SparkSession) -> None:
    """The printed command works, twice; no payload is kept anywhere else (P2.12)."""
    shop = plain_shop
    marker = "marker-7f3a-personal"
    publish_orders(shop.bootstrap, shop.topic, [{**make_order(9999), "status": marker}])
    unread = list_unread(read_own(shop))
    archive = offload(shop, spark)
    assert read_own(shop) == []
    source = f"archive:{archive}"
    command = f"backlogctl plan redrive orders --from {source}"
    assert command in shop.call("gaps").out
    assert command in shop.call("archive", "show", archive).out
    assert command in shop.call("status").out
    gaps = shop.call("gaps", "--json").document["gaps"]
    assert gaps[0]["archive"] == archive
    refused = shop.call("plan", "rebuild", "orders", "--json", code=2).error
    assert command in refused["hint"]
    planned = plan(shop, "--from", source)
    assert planned["counts"]["staged"] == planned["counts"]["read"] == UNREAD + 1
    assert archive in shop.call("show", planned["id"]).out
    run(shop, planned["id"])
    assert read_own(shop) == unread
    assert list_states(shop) == SETTLED
    for message in read_all(shop.properties, shop.topic, range(PARTITIONS)):
        headers: Any = message.headers()
        assert stamps.find_header(headers, stamps.FIDELITY) == "original"
        assert stamps.find_header(headers, stamps.REPLAYS) == "1"
    said = [
        shop.call("report", planned["id"], "--json", "--html", "report.html"),
        shop.call("show", planned["id"], "--json"),
        shop.call("gaps", "--json"),
        shop.call("archive", "list", "--json"),
        shop.call("archive", "show", archive, "--json"),
    ]
    assert said[0].document["verification"]["result"] == "passed"
    shown = said[-1].document
    assert (shown["put_back"], shown["waiting"]) == (UNREAD + 1, 0)
    assert shown["expires_at"] is not None
    assert not [one for one in said if marker in one.out + one.err]
    assert marker not in (shop.directory / "report.html").read_text()
    for path in shop.directory.glob("ledger.db*"):
        assert marker.encode() not in path.read_bytes()
    assert "nothing that stream orders has lost" in plan(shop, "--from", source, code=5)["message"]
    move_log_start(shop.properties, shop.topic, shop.read_ends())
    assert command in shop.call("gaps").out
    assert carry_out(shop, "--from", source)["counts"]["staged"] == UNREAD + 1
    assert read_own(shop) == unread
    assert list_states(shop) == SETTLED


def test_killed_and_planned_again_it_is_put_back_once(
    plain_shop: Shop, spark: SparkSession
) -> None:
    """P2.4: a cancelled recovery's committed chunks are not sent again."""
    shop = plain_shop
    unread = list_unread(read_own(shop))
    archive = offload(shop, spark)
    shop.write_config(limits={"messages_per_second": 30})
    first = plan(shop, "--from", f"archive:{archive}")["id"]
    shop.call("approve", first, "--by", "Ada")
    said = shop.run("run", first, code=None, BACKLOG_CRASH_AT="p3.7.copy.before:2")
    assert said.code != os.EX_OK
    shop.call("cancel", first)
    there = len(read_own(shop))
    assert 0 < there < UNREAD
    waiting = shop.open().ledger.gaps.list_waiting()
    assert {gap.archive for gap in waiting} == {archive}, "given back to the archive"
    shop.write_config(limits={})
    counts = carry_out(shop, "--from", f"archive:{archive}")["counts"]
    assert (counts["put_back"], counts["staged"]) == (there, UNREAD - there)
    assert sorted(read_own(shop), key=repr) == sorted(unread, key=repr)
    assert list_states(shop) == SETTLED


def test_every_shape_comes_back_equal(empty_shop: Shop, spark: SparkSession) -> None:
    """Null keys, tombstones, empty values, repeated, empty and null headers, binary ones."""
    shop = empty_shop
    shop.write_config(source=None)
    set_config(shop.properties, shop.topic, {"retention.ms": "-1"})
    archiving.publish(shop.bootstrap, shop.topic, 40, PARTITIONS, **{"compression.type": "zstd"})
    commit(shop.properties, shop.group, shop.topic, {0: 1})
    before = read_own(shop)
    archive = offload(shop, spark, starts=dict.fromkeys(range(PARTITIONS), 0))
    set_config(shop.properties, shop.topic, {"max.message.bytes": "5000"})
    short = plan(shop, "--from", f"archive:{archive}")
    assert (short["verdict"], short["counts"]["quarantined"]) == ("partial", 4 * PARTITIONS)
    assert len(shop.open().ledger.gaps.list_waiting()) == PARTITIONS, "their gaps stay"
    set_config(shop.properties, shop.topic, {"max.message.bytes": "1000000"})
    carry_out(shop, "--from", f"archive:{archive}")
    assert read_own(shop) == before
    assert list_states(shop) == SETTLED


def test_fault_81_keys_go_where_they_belong_now(plain_shop: Shop, spark: SparkSession) -> None:
    shop, now = plain_shop, PARTITIONS + 2
    archive = offload(shop, spark)
    admin = make_admin(shop.properties)
    admin.create_partitions([NewPartitions(shop.topic, now)])[shop.topic].result(60)
    wait_until(
        lambda: len(admin.list_topics(shop.topic, timeout=10).topics[shop.topic].partitions) == now,
        what="the partitions are there",
    )
    planned = carry_out(shop, "--from", f"archive:{archive}")
    assert "the messages are of 3: they go by their keys" in " ".join(planned["warnings"])
    found: dict[int, list[bytes]] = {}
    for partition, key, _, _ in read_own(shop, partitions=now):
        assert key is not None
        found.setdefault(partition, []).append(key)
    assert sum(map(len, found.values())) == UNREAD
    for number, keys in found.items():
        by_home: dict[int, list[int]] = {}
        for key in keys:
            assert place_key(key, now) == number
            by_home.setdefault(place_key(key, PARTITIONS), []).append(int(key))
        assert all(numbers == sorted(numbers) for numbers in by_home.values())
    assert list_states(shop) == SETTLED


WAVE = 60  # orders: handled, expired, offloaded, expired, still there
NIGHT = name_origin("nightly_backfill", "manual__1")


def test_archived_and_lost_in_one_night(empty_shop: Shop, spark: SparkSession) -> None:
    """Each is once in the log, and every gap is closed."""
    shop = empty_shop
    archive = lose_and_offload(shop, spark)
    states = [gap.state for gap in shop.open().ledger.gaps.list()]
    assert sorted(states) == [GapState.OPEN] * 6 + [GapState.STAGED] * 3
    refused = shop.call("plan", "rebuild", "orders", "--gap", find_waiting(shop), "--json", code=2)
    assert f"backlogctl plan redrive orders --from archive:{archive}" in refused.error["message"]
    kinds = work_off(shop)
    assert kinds == ["redrive", "rebuild"]
    check_sent(shop, list(range(WAVE, 4 * WAVE)), skip=range(4 * WAVE, 6 * WAVE))
    assert {gap.state for gap in shop.open().ledger.gaps.list()} == {GapState.VERIFIED}


def work_off(shop: Shop) -> list[str]:
    """Carries out what the night finds until it finds nothing; the kinds, in their order."""
    workspace = shop.open()
    kinds: list[str] = []
    stream, console = workspace.config.stream("orders"), Console(file=io.StringIO())
    while True:
        work = find_night_work(workspace, stream, utc_now(), NIGHT)
        if work.action is Tonight.NOTHING:
            return kinds
        recovery = workspace.ledger.recoveries.get(work.recovery)
        if work.action is Tonight.ASK:
            shop.call("approve", recovery.id, "--by", "Ada")
        kinds.append(recovery.kind)
        carried = carry_on(workspace, recovery.id, console)
        assert carried.come_again is None, carried.why


def find_waiting(shop: Shop) -> str:
    return shop.open().ledger.gaps.list_waiting()[0].id


def lose_and_offload(shop: Shop, spark: SparkSession) -> str:
    """Orders that expired before and after what was offloaded; the archive's id."""
    shop.write_config(source=SOURCE)
    rows: list[dict[str, Any]] = []

    def publish(waves: int) -> None:
        for _ in range(waves):
            begin, first = utc_now(), len(rows)
            wave = [
                {**make_order(number), "updated_at": begin + timedelta(microseconds=number)}
                for number in range(first, first + WAVE)
            ]
            publish_orders(shop.bootstrap, shop.topic, wave)
            rows.extend(wave)

    def expire(orders: int) -> None:
        move_log_start(shop.properties, shop.topic, count_by_partition(range(orders)))

    publish(2)
    commit(shop.properties, shop.group, shop.topic, count_by_partition(range(WAVE)))
    expire(2 * WAVE)
    fill_table(shop.url, ORDERS, [])
    shop.call("gaps")
    publish(1)
    archive = offload(shop, spark)
    shop.call("gaps")
    begin = utc_now()
    publish(1)
    record_expired(shop, begin)
    expire(4 * WAVE)
    publish(2)
    insert(shop, rows)
    return archive


def record_expired(shop: Shop, begin: datetime) -> None:
    """The group set by a tool is no member: what expired behind it would be known as bounded."""
    starts, ends = (count_by_partition(range(waves * WAVE)) for waves in (3, 4))
    record(shop, begin, starts, ends)


def record(shop: Shop, begin: datetime, starts: Mapping[int, int], ends: Mapping[int, int]) -> None:
    ledger = shop.open().ledger
    offloaded = next(gap for gap in ledger.gaps.list() if gap.archive)
    for number in range(PARTITIONS):
        ledger.gaps.record(
            replace(
                offloaded,
                partition=number,
                start=starts[number],
                end=ends[number],
                cause=Cause.EXPIRED,
                archive=None,
                first_time=begin,
                last_time=utc_now(),
                reason="",
            )
        )


def insert(shop: Shop, rows: list[dict[str, Any]]) -> None:
    engine = sqlalchemy.create_engine(shop.url)
    names = list(rows[0])
    with engine.begin() as connection:
        connection.execute(
            sqlalchemy.text(
                f"INSERT INTO orders ({', '.join(names)}) "
                f"VALUES ({', '.join(f':{name}' for name in names)})"
            ),
            [{**row, "updated_at": f"{row['updated_at']:%Y-%m-%d %H:%M:%S.%f}"} for row in rows],
        )
    engine.dispose()


def check_sent(shop: Shop, orders: list[int], skip: range = range(0)) -> None:
    """Each once, where it belongs; those of the archive in each partition in their old order."""
    found: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    for partition, key, _, _ in read_own(shop):
        assert key is not None
        found[partition].append(int(key))
    for number, keys in found.items():
        sent = [key for key in keys if key not in skip]
        assert Counter(sent) == Counter(order for order in orders if place(order) == number)
        archived = [key for key in sent if key in range(2 * WAVE, 3 * WAVE)]
        assert sent[: len(archived)] == archived == sorted(archived)


def test_the_whole_way(plain_shop: Shop, spark: SparkSession, endpoint: str) -> None:
    shop = plain_shop
    archive = offload(shop, spark, store=f"s3a://{BUCKET}/offloads")
    client = make_client(endpoint)
    upload(client, shop.directory / "staging" / "archives" / archive, f"offloads/{archive}")
    assert isinstance(LOCAL_SPARK["conf"], dict)
    conf = {
        **LOCAL_SPARK["conf"],
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }
    shop.spark = {**LOCAL_SPARK, "conf": conf}
    shop.environment.update(KEYS)
    shop.write_config(mask=["user_id"])
    peeked = shop.run("archive", "peek", archive, "--partition", "1", "-n", "2").out
    assert '"user_id": "***"' in peeked
    assert shop.run("archive", "verify", archive, "--json").document["messages"] == UNREAD
    source = f"archive:{archive}"
    plan = shop.run("plan", "redrive", "orders", "--from", source, "--json").document
    assert plan["counts"]["staged"] == UNREAD
    shop.call("approve", plan["id"], "--by", "Ada")
    shop.run("run", plan["id"])
    assert len(read_own(shop)) == UNREAD
    purged = shop.run("archive", "purge", archive, "--json").document
    assert purged["files"] > 0
    assert "Contents" not in client.list_objects_v2(Bucket=BUCKET, Prefix=f"offloads/{archive}")


def make_client(endpoint: str) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
    )


def upload(client: Any, folder: Path, prefix: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            name = f"{prefix}/{path.relative_to(folder)}"
            client.put_object(Bucket=BUCKET, Key=name, Body=path.read_bytes())


TOPIC = "topic-id"


def wait_in_archive(desk: Workspace) -> Gap:
    """A gap of a stream without a source that waits in the archive of an offload."""
    ledger = desk.ledger
    made = create_recovery(ledger, "offload", plan_hash="f" * 64, by="op")
    ledger.recoveries.advance(made.id, RecoveryState.REJECTED, "op")
    ledger.archives.record(
        made.id, stream="orders", cluster="main", topic="orders", topic_id=TOPIC,
        location="/nowhere", manifest_sha256="a" * 64, messages=80, bytes=1,
        ranges=[ArchivedRange(0, 10, 100, 80, NOON, NOON)],
    )  # fmt: skip
    seen = make_gap(10, 100, cause=Cause.DISCARDED, topic_id=TOPIC)
    gap = ledger.gaps.record(replace(seen, group="service", archive=made.id))
    for state in (GapState.PLANNED, GapState.STAGED):
        ledger.gaps.advance([gap.id], state, made.id)
    return ledger.gaps.get(gap.id)


def record_of(desk: Workspace, gap: Gap) -> ArchiveRecord:
    assert gap.archive is not None
    return desk.ledger.archives.get(gap.archive)


def test_it_is_work_for_the_night(desk: Workspace) -> None:
    stream = desk.config.stream("orders")
    assert not has_nights(desk, stream)
    gap = wait_in_archive(desk)
    assert has_nights(desk, stream)
    assert list_repairable(desk.ledger, stream) == ()
    assert [(each.gap, each.is_held) for each in list_archived(desk.ledger, stream)] == [
        (gap, True)
    ]
    anew = list_archived(desk.ledger, stream, "another")
    assert [each.gap for each in anew] == [gap], "whatever topic of its name there is now"
    assert _count_gaps(desk, stream, lambda _: True) == 1
    assert _count_gaps(desk, stream, lambda found: found.detected_at < NOON) == 0
    told = list_waiting_work(desk, ["recover_backlog"]).nightly
    assert told == ("1 gap of orders waits in an archive",)
    assert choose_actions(desk, stream, Verdict.OK, 0, TOPIC) == ("redrive",)
    assert choose_actions(desk, stream, Verdict.OK, 0, "another") == ("redrive",)


def test_the_verbs_tell_it(desk: Workspace, tmp_path: Path) -> None:
    gap = wait_in_archive(desk)
    code, out, _ = call_main(("gaps", "--no-look"), tmp_path, {})
    assert code == 0
    assert f"backlogctl plan redrive orders --from archive:{gap.archive}" in out
    code, out, _ = call_main(("waive", gap.id, "--reason", "nobody needs it"), tmp_path, {})
    assert code == 0
    waived = desk.ledger.gaps.get(gap.id)
    assert waived.state is GapState.WAIVED
    assert "nobody needs it" in waived.reason
    assert list_archived(desk.ledger, desk.config.stream("orders")) == ()


def test_why_not(desk: Workspace) -> None:
    stream, gap = desk.config.stream("orders"), wait_in_archive(desk)
    record = record_of(desk, gap)
    lost = replace(gap, archive=None, cause=Cause.EXPIRED)
    command = f"backlogctl plan redrive orders --from archive:{gap.archive}"
    for one in (gap, lost):
        assert suggest_redrive(desk.ledger, one) == command, "the archive has the same offsets"
        assert f"`{command}` puts them back" in explain_unrebuildable(
            desk.ledger, one, stream, TOPIC
        )
    beyond = replace(lost, end=101)
    assert "no source table" in explain_unrebuildable(desk.ledger, beyond, stream)
    assert find_archive_of(beyond, [record]) is None
    assert suggest_plans(desk, stream, [beyond]) == [], "a rebuild would be refused"
    assert suggest_plans(desk, stream, [gap]) == [command]
    assert "puts them back" in explain_unrebuildable(desk.ledger, gap, stream, "another")
    assert "deleted since" in explain_unrebuildable(desk.ledger, beyond, stream, "another")
    desk.ledger.archives.mark_purged(record.recovery_id, "op")
    assert "was purged" in explain_unrebuildable(desk.ledger, gap, stream)
    assert "no source table" in explain_unrebuildable(desk.ledger, lost, stream)
    assert "not on record" in explain_unrebuildable(
        desk.ledger, replace(gap, archive="r-1"), stream
    )


def test_both_ends_are_included_and_overlaps_are_one() -> None:
    said = parse_offsets(["1:7", "0:5-9", "0:8-12", "0:13", "0:20–21"], 2)
    assert said == (OffsetRange(0, 5, 14), OffsetRange(0, 20, 22), OffsetRange(1, 7, 8))


@pytest.mark.parametrize("text", ["", "5-9", "0:", "0:-5", "0:5-4", "2:1", "a:1-2", "0:1-2-3"])
def test_what_is_no_range_is_named(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_offsets([text], 2)
    assert caught.value.subject == f"--offsets {text}"


def test_what_is_not_there_is_told() -> None:
    there = [OffsetRange(0, 10, 20), OffsetRange(1, 5, 5), OffsetRange(2, 0, 9)]
    assert choose_ranges((), there) == ((OffsetRange(0, 10, 20), OffsetRange(2, 0, 9)), [])
    said = parse_offsets(["0:5-12", "1:0-3", "2:4-"], 3)
    ranges, warnings = choose_ranges(said, there)
    assert ranges == (OffsetRange(0, 10, 13), OffsetRange(2, 4, 9))
    assert warnings == [
        "5 of the offsets 5–12 of partition 0 are not there; 10–19 are",
        "4 of the offsets 0–3 of partition 1 are not there; none are",
    ]


def test_a_range_may_span_several_of_an_archive() -> None:
    there = [OffsetRange(0, 0, 10), OffsetRange(0, 20, 30)]
    ranges, warnings = choose_ranges(parse_offsets(["0:5-24"], 1), there)
    assert ranges == (OffsetRange(0, 5, 10), OffsetRange(0, 20, 25))
    assert warnings == ["10 of the offsets 5–24 of partition 0 are not there; 0–9, 20–29 are"]


def test_what_is_older_than_a_time_is_skipped() -> None:
    ranges = [OffsetRange(0, 0, 10), OffsetRange(0, 20, 30), OffsetRange(1, 0, 5)]
    assert skip_before(ranges, {0: 7, 1: -1}) == (OffsetRange(0, 7, 10), OffsetRange(0, 20, 30))
    assert skip_before(ranges, {0: 30, 1: 0}) == (OffsetRange(1, 0, 5),)


def test_a_filter_alone_is_no_bound() -> None:
    with pytest.raises(UsageError):
        require_bounds(RedriveOptions(source="log", where="key = 'a'"))
    require_bounds(RedriveOptions(source="log", key=("a",)))
    require_bounds(RedriveOptions(source="log", everything=True))


def test_keys_are_said_or_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"b\r\n\xff\n\nb\n")
    assert read_keys(["a", f"@{file}", "a"]) == (b"a", b"b", b"\xff")
    assert read_keys([]) == ()
    file.write_bytes(b"\n")
    for word in (f"@{file}", f"@{tmp_path / 'nowhere'}"):
        with pytest.raises(UsageError) as caught:
            read_keys([word])
        assert caught.value.subject == f"--key {word}"
