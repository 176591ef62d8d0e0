"""`audit counts` over a real topic and table; archives join on, and folders are gone afterwards."""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from rich.console import Console

from backlogctl.archive_manifest import ArchivedRange
from backlogctl.clock import format_time, utc_now
from backlogctl.errors import UsageError
from backlogctl.formats import format_moment
from backlogctl.ledger.archives import ArchiveRecord
from backlogctl.replay.audits import span, tiers
from backlogctl.replay.audits.audit import (
    AuditFinding,
    AuditOptions,
    AuditResult,
    Say,
    sweep_folders,
)
from backlogctl.replay.audits.counts import CountsAuditing
from backlogctl.replay.audits.span import Span
from backlogctl.replay.audits.tiers import find_archived
from backlogctl.replay.engine.options import read_options
from backlogctl.replay.present.figures import make_counts_figure
from backlogctl.replay.present.tables import render_audit
from backlogctl.values import OffsetRange
from backlogctl_delivery import stamps
from tests.conftest import MakeTopic
from tests.kit.kafka import move_log_start, set_offsets_raw
from tests.kit.shop import PARTITIONS, PROCESSED, Shop, count_by_partition, offload, place
from tests.spark_backfill.world import (
    ORDERS,
    await_decided,
    encode_order,
    fill_table,
    make_order,
    run_sql,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


MINUTE = timedelta(minutes=1)
COUNT = 240
# An order each half minute for two hours, up to half an hour ago.
STEP = MINUTE / 2


@pytest.fixture
def began(spark: SparkSession) -> datetime:
    """The first order's time, on the minute; the audits use the session's Spark."""
    at = utc_now() - COUNT * STEP - 30 * MINUTE
    return at.replace(second=0, microsecond=0)


def make_orders(began: datetime, numbers: Iterable[int]) -> list[dict[str, Any]]:
    return [{**make_order(number), "updated_at": began + number * STEP} for number in numbers]


def send(shop: Shop, rows: Iterable[dict[str, Any]], **settings: Any) -> None:
    """As the shop does; a message has the time of its row and 40 ms."""
    late = settings.pop("late", MINUTE / 1500)
    headers = settings.pop("headers", lambda row: [])
    producer = Producer({**shop.properties, "linger.ms": 5, **settings})
    outcome = str(settings.get("transactional.id", ""))
    if outcome:
        producer.init_transactions(90)
        producer.begin_transaction()
    for row in rows:
        key = str(row["order_id"]).encode()
        at = round((row["updated_at"] + late).timestamp() * 1000)
        partition = place(row["order_id"])
        producer.produce(
            shop.topic, encode_order(row), key, partition, timestamp=at, headers=headers(row)
        )
    assert producer.flush(90) == 0
    if outcome:
        (producer.abort_transaction if "abort" in outcome else producer.commit_transaction)(90)
        await_decided(shop.bootstrap, shop.topic, PARTITIONS)


def fill(shop: Shop, rows: list[dict[str, Any]], handled: Iterable[int]) -> None:
    fill_table(shop.url, ORDERS, rows)
    fill_table(shop.url, PROCESSED, [{"order_id": number} for number in handled], "processed")


def audit(shop: Shop, say: Say = lambda line: None, **said: Any) -> AuditResult:
    workspace = shop.open()
    stream = workspace.config.stream("orders")
    options = read_options(AuditOptions, said, workspace.config, stream, str)
    found = CountsAuditing().examine(workspace, stream, options, say)
    console = Console(file=io.StringIO(), width=100)
    console.print(render_audit(found.to_json()))
    return found


def list_checks(found: AuditResult) -> list[tuple[str, str]]:
    return [(one.check, str(one.level)) for one in found.findings]


def find(found: AuditResult, check: str) -> AuditFinding:
    (one,) = (each for each in found.findings if each.check == check)
    return one


def sum_up(found: AuditResult, name: str) -> int:
    return sum(window[name] for window in found.tables["windows"])


def edit(shop: Shop, change: Callable[[dict[str, Any]], object]) -> None:
    path = shop.directory / "backlog.yaml"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def catch_up(shop: Shop) -> None:
    """The group has read all there is."""
    set_offsets_raw(shop.properties, shop.group, shop.topic, shop.read_ends())


def test_a_complete_stream_is_clean(empty_shop: Shop, began: datetime) -> None:
    """With late messages, repeats, aborted transactions and what a recovery put back."""
    shop, rows = empty_shop, make_orders(began, range(COUNT))
    young = [{**make_order(number), "updated_at": utc_now()} for number in (900, 901)]
    fill(shop, [*rows, *young], range(COUNT))  # their messages are on their way
    send(shop, rows[:100])
    send(shop, rows[100:110], **{"transactional.id": f"abort-{shop.topic}"})
    send(shop, rows[110:])
    send(shop, rows[100:110], late=25 * MINUTE)
    send(shop, rows[20:25])
    ours = [
        (stamps.MESSAGE_ID, b"0" * 32),
        (stamps.RECOVERY_ID, b"r-20261124-0001"),
        (stamps.ORIGINAL_TIME, b"2026-01-01T00:00:00.000000Z"),
    ]
    again = {
        "late": 90 * MINUTE,
        "headers": lambda row: ours,
        "transactional.id": f"commit-{shop.topic}",
    }
    send(shop, rows[30:33], **again)
    catch_up(shop)
    found = audit(shop)
    assert (found.verdict, found.exit_code) == ("clean", 0)
    assert list_checks(found) == [("span", "noted")]
    assert (found.figures["repeats"], found.figures["put_back"]) == (8, 3)
    assert sum_up(found, "rows") == sum_up(found, "messages") == sum_up(found, "handled") > 200
    eager = audit(shop, grace="1ms")
    assert find(eager, "rows-without-messages").count == 2
    # Nothing happened in the last half hour.
    since, until = began + (COUNT + 10) * STEP, began + (COUNT + 40) * STEP
    idle = audit(shop, since=format_time(since), until=format_time(until))
    assert (idle.verdict, idle.figures["rows"], idle.figures["messages"]) == ("clean", 0, 0)
    assert len(idle.tables["windows"]) == 15
    assert list(shop.directory.glob("staging/audit-*")) == []


def test_what_was_not_sent_or_not_handled_is_in_its_window(
    empty_shop: Shop, began: datetime
) -> None:
    shop, rows = empty_shop, make_orders(began, range(COUNT))
    unsent, unhandled = range(150, 157), range(180, 185)
    fill(shop, rows, set(range(230)) - set(unsent) - set(unhandled))
    send(shop, rows[:150])
    send(shop, rows[157:200] + rows[201:230])
    send(
        shop, [{**make_order(number), "updated_at": began + 100 * MINUTE} for number in (998, 999)]
    )
    catch_up(shop)
    send(shop, rows[230:])  # the group has not read these
    found = audit(shop)
    assert (found.verdict, found.exit_code) == ("suspect", 1)
    assert list_checks(found) == [
        ("rows-without-messages", "suspect"),
        ("messages-not-handled", "suspect"),
        ("span", "noted"),
        ("messages-without-rows", "noted"),
        ("handled-without-messages", "noted"),
    ]
    assert find(found, "handled-without-messages").found.startswith("1 row without a message")
    missing = find(found, "rows-without-messages")
    assert missing.count == 7
    stretch = f"{format_moment(began + 75 * MINUTE)} to {format_moment(began + 79 * MINUTE)}"
    assert missing.found == f"7 rows have no message in the topic or an archive: 7 of {stretch}"
    first, again = missing.commands
    assert first == "backlogctl audit sequence orders"
    # Its producer does not number: that says where to look instead.
    (unnumbered,) = shop.call(*shlex.split(first)[1:], "--json", code=2).document["findings"]
    assert unnumbered["check"] == "not-stamped"
    assert unnumbered["commands"] == ["backlogctl audit counts orders"]
    minutes = [began + minute * MINUTE for minute in (75, 76, 77, 78)]
    assert [(one["start"], one["count"]) for one in missing.detail["windows"]] == [
        (format_time(at), count) for at, count in zip(minutes, (2, 2, 2, 1), strict=True)
    ]
    skipped = find(found, "messages-not-handled")
    assert skipped.count == 5
    assert skipped.commands == ("backlogctl audit consumed orders",)
    assert {one["start"] for one in skipped.detail["windows"]} == {
        format_time(began + minute * MINUTE) for minute in (90, 91, 92)
    }
    strange = find(found, "messages-without-rows")
    assert strange.count == 2
    assert strange.detail["windows"][0]["start"] == format_time(began + 100 * MINUTE)
    by_start = {window["start"]: window for window in found.tables["windows"]}
    assert by_start[format_time(minutes[0])] == {
        "start": format_time(minutes[0]),
        "end": format_time(minutes[1]),
        "rows": 2,
        "messages": 0,
        "archived": 0,
        "handled": 0,
        "rows_without_message": 2,
        "messages_without_row": 0,
        "not_handled": 0,
    }
    # Sent at last, an hour late: it is counted where the rows are.
    send(shop, [rows[number] for number in (*unsent, 200)], late=50 * MINUTE)
    mended = audit(shop)
    assert list_checks(mended)[0] == ("messages-not-handled", "suspect")
    assert sum_up(mended, "messages") == sum_up(mended, "rows")
    # Sent again with others of these times, and counted again as printed.
    send(shop, rows[140:160], late=55 * MINUTE)
    narrow = shop.call(*shlex.split(again)[1:], "--json", code=None).document
    assert "rows-without-messages" not in {one["check"] for one in narrow["findings"]}
    assert (narrow["figures"]["rows"], narrow["figures"]["messages"]) == (8, 8)


def test_fault_150_a_late_row_whose_message_came_meanwhile_is_no_loss(
    empty_shop: Shop, began: datetime
) -> None:
    """Written while it counts, with a time of an hour ago: no grace covers it."""
    shop, rows = empty_shop, make_orders(began, range(COUNT))
    late, unsent = rows[100:110], rows[150]
    fill(shop, rows[:100] + rows[110:], {*range(COUNT)} - {*range(100, 110), 150})
    send(shop, [row for row in rows[:100] + rows[110:] if row is not unsent])
    catch_up(shop)

    def write_late(line: str) -> None:
        if line.endswith("processed"):
            fill_table(shop.url, "SELECT 1", late)
            send(shop, late, late=60 * MINUTE)

    found = audit(shop, write_late)
    missing = find(found, "rows-without-messages")
    assert missing.count == 1, missing.found
    assert sum_up(found, "rows") - 1 == sum_up(found, "messages")
    again = audit(shop)
    for tier in ("rows", "messages"):
        assert sum_up(found, tier) == sum_up(again, tier), "as when all is there"


def test_fault_150_a_message_whose_row_came_after_the_rows_were_read_has_one(
    empty_shop: Shop, began: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is read once more, since one row has no message; the table is not."""
    shop, rows = empty_shop, make_orders(began, range(COUNT))
    late, unsent, spans = rows[100:110], rows[150], []
    fill(shop, rows[:100] + rows[110:], {*range(COUNT)} - {150})
    send(shop, [row for row in rows[:100] + rows[110:] if row is not unsent])
    catch_up(shop)

    def read_span(*given: Any) -> Span:
        spans.append(given)
        if len(spans) == 2:
            fill_table(shop.url, "SELECT 1", late)
            send(shop, late)
        return span.read_span(*given)

    monkeypatch.setattr(tiers, "read_span", read_span)
    found = audit(shop)
    assert len(spans) == 2
    assert list_checks(found) == [
        ("rows-without-messages", "suspect"),
        ("span", "noted"),
    ]
    assert find(found, "rows-without-messages").count == 1


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("looks", [3, 100])
def test_a_busy_stream_with_late_rows_is_clean(
    empty_shop: Shop, began: datetime, looks: int
) -> None:
    """Each row is of the last two hours, sent when it is committed, and handled before its offset
    is."""
    shop, rows = empty_shop, make_orders(began, range(COUNT))
    fill(shop, rows, range(COUNT))
    send(shop, rows)
    catch_up(shop)
    stopping, numbers = threading.Event(), itertools.count(COUNT)
    dice = random.Random(7)

    def work() -> int:
        while not stopping.is_set():
            late = [
                {**make_order(next(numbers)), "updated_at": began + dice.randrange(COUNT) * STEP}
                for _ in range(5)
            ]
            fill_table(shop.url, "SELECT 1", late)
            send(shop, late, late=dice.random() * 60 * MINUTE)
            handled = [{"order_id": row["order_id"]} for row in late]
            fill_table(shop.url, "SELECT 1", handled, "processed")
            catch_up(shop)
        return next(numbers) - COUNT

    with ThreadPoolExecutor(1) as aside:
        working = aside.submit(work)
        try:
            for _ in range(looks):
                found = audit(shop)
                assert {str(one.level) for one in found.findings} == {"noted"}, found.findings
        finally:
            stopping.set()
        assert working.result(90) > looks


def test_what_retention_took_is_no_loss(empty_shop: Shop, began: datetime) -> None:
    shop, rows = empty_shop, make_orders(began, range(COUNT))
    fill(shop, rows, range(60))
    send(shop, rows)
    # The other partitions still have all.
    gone = count_by_partition(range(90))
    move_log_start(shop.properties, shop.topic, {1: gone[1]})
    found = audit(shop)
    assert list_checks(found) == [("no-commits", "unknown"), ("span", "noted")]
    assert find(found, "span").found.endswith("retention took older messages of partition 1")
    move_log_start(shop.properties, shop.topic, gone)
    found = audit(shop)
    # Nothing is committed, and that says nothing of what was handled.
    assert list_checks(found) == [("no-commits", "unknown"), ("span", "noted")]
    span = find(found, "span")
    assert span.found.endswith(("partition 0", "partition 1", "partition 2"))
    assert span.detail["begin"] > format_time(began + 90 * STEP + 10 * MINUTE)
    assert sum_up(found, "rows") == sum_up(found, "messages") > 80
    asked = audit(shop, since=format_time(began))
    assert find(asked, "span").detail["begin"] == span.detail["begin"]
    later = began + 200 * STEP
    asked = audit(shop, since=format_time(later))
    assert find(asked, "span").detail["begin"] == format_time(later)
    assert asked.figures["rows"] == asked.figures["messages"] == 40
    # Where all is gone, nothing can be said.
    move_log_start(shop.properties, shop.topic, shop.read_ends())
    empty = audit(shop)
    assert list_checks(empty) == [("nothing-judged", "unknown")]
    assert empty.exit_code == 2
    assert empty.figures == dict.fromkeys(["rows", "messages", "archived", "handled"])
    assert empty.tables == {"windows": []}


def test_what_a_offload_moved_waits_in_an_archive(
    empty_shop: Shop, spark: SparkSession, began: datetime
) -> None:
    """It is no loss; what was lost beside it is told, and what is put back counts once."""
    shop, rows = empty_shop, make_orders(began, range(COUNT))
    unsent, offloaded, back = (120, 150), range(30, 200), range(160, 170)
    fill(shop, rows, set(range(COUNT)) - set(offloaded))
    send(shop, [row for number, row in enumerate(rows[:200]) if number not in unsent])
    set_offsets_raw(shop.properties, shop.group, shop.topic, count_by_partition(range(30)))
    offload(shop, spark)
    send(shop, rows[200:])
    catch_up(shop)
    found = audit(shop)
    assert list_checks(found) == [
        ("rows-without-messages", "suspect"),
        ("span", "noted"),
        ("in-an-archive", "noted"),
    ]
    assert find(found, "rows-without-messages").count == len(unsent)
    # What is left to judge begins with the archive, not with the topic.
    begin = find(found, "span").detail["begin"]
    first = sum(format_time(row["updated_at"]) < begin for row in rows)
    assert offloaded[0] < first < unsent[0]
    waiting = offloaded[-1] + 1 - first - len(unsent)
    assert find(found, "in-an-archive").found.startswith(f"of {waiting} rows")
    assert sum_up(found, "archived") == found.figures["archived"] == waiting
    assert (found.figures["rows"], found.figures["messages"]) == (COUNT - first, COUNT - 200)

    # Some are put back, as a recovery writes them, and read; then they are handled.
    ours = [(stamps.RECOVERY_ID, b"r-20261124-0001"), (stamps.MESSAGE_ID, b"0" * 32)]
    send(shop, [rows[number] for number in back], headers=lambda row: ours)
    catch_up(shop)
    assert find(audit(shop), "messages-not-handled").count == len(back)
    run_sql(shop.url, *(f"INSERT INTO processed VALUES ({number})" for number in back))
    found = audit(shop)
    assert "messages-not-handled" not in dict(list_checks(found))
    assert sum_up(found, "archived") == waiting - len(back)
    assert (found.figures["put_back"], found.figures["repeats"]) == (len(back), 0)


def test_rows_read_in_a_wrong_time_zone_are_not_compared(empty_shop: Shop, began: datetime) -> None:
    shop, rows = empty_shop, make_orders(began, range(COUNT))
    fill(shop, rows, range(COUNT))
    send(shop, rows)
    edit(shop, lambda document: document["sources"]["shop"].update(timezone="Europe/Berlin"))
    found = audit(shop)
    assert list_checks(found) == [("zone", "unknown"), ("span", "noted")]
    assert "is `sources.shop.timezone` right?" in find(found, "zone").found
    assert found.figures["rows"] is None


def test_a_consumer_without_a_table_is_not_compared(empty_shop: Shop, began: datetime) -> None:
    shop, rows = empty_shop, make_orders(began, range(COUNT))
    fill_table(shop.url, ORDERS, rows)
    send(shop, rows)
    edit(shop, lambda document: document["streams"]["orders"]["source"].pop("consumed"))
    run_sql(shop.url, "INSERT INTO orders (order_id, updated_at) VALUES (7000, 'soon')")
    found = audit(shop)
    assert list_checks(found) == [("unplaced-rows", "unknown"), ("span", "noted")]
    assert "handled" not in found.figures
    assert {window["handled"] for window in found.tables["windows"]} == {None}


def test_a_row_that_changed_after_its_message_expired_is_said_to_be_possible(
    empty_shop: Shop, pg_url: str, began: datetime
) -> None:
    """A mutable table in PostgreSQL, where the database itself leaves out what is too old."""
    shop, rows = replace(empty_shop, url=pg_url), make_orders(began, range(COUNT))
    shop.write_config()
    fill(shop, rows, range(COUNT))
    send(shop, rows)
    catch_up(shop)
    assert list_checks(audit(shop)) == [("span", "noted")]
    edit(shop, lambda document: document["streams"]["orders"]["source"].update(mutable=True))
    run_sql(
        pg_url,
        f"UPDATE orders SET updated_at = '{rows[150]['updated_at'].isoformat()}' WHERE order_id < 3",
        "DELETE FROM processed WHERE order_id < 3",
    )
    # All are in the topic still, wherever their rows are now.
    since = format_time(rows[140]["updated_at"])
    assert list_checks(audit(shop, since=since)) == [
        ("messages-not-handled", "suspect"),
        ("span", "noted"),
    ]
    move_log_start(shop.properties, shop.topic, count_by_partition(range(30)))
    changed = find(audit(shop), "rows-without-messages")
    assert (changed.count, str(changed.level)) == (3, "suspect")
    assert "the row has changed since" in changed.mend


def test_in_a_compacted_topic_a_message_by_header_may_have_been_replaced(
    empty_shop: Shop, topic: MakeTopic, began: datetime
) -> None:
    compacted = topic(partitions=PARTITIONS, config={"cleanup.policy": "compact"})
    shop, rows = replace(empty_shop, topic=compacted), make_orders(began, range(COUNT))
    shop.write_config()
    fill(shop, rows, [])
    send(shop, rows[:100] + rows[102:], headers=lambda row: [("id", str(row["order_id"]))])
    by_header = {"row": "order_id", "message": "header:id"}
    edit(shop, lambda document: document["streams"]["orders"]["source"].update(identity=by_header))
    found = audit(shop)
    assert list_checks(found)[0] == ("rows-without-messages", "unknown")
    assert find(found, "rows-without-messages").count == 2


def test_an_empty_topic_says_nothing(empty_shop: Shop, spark: SparkSession) -> None:
    fill(empty_shop, make_orders(utc_now() - 60 * MINUTE, range(3)), [])
    found = audit(empty_shop)
    assert list_checks(found) == [("nothing-judged", "unknown")]
    assert "holds no messages" in found.findings[0].found


def test_what_cannot_be_counted_is_refused_before_spark(empty_shop: Shop) -> None:
    said: dict[str, Any] = {"since": "2026-11-20T12:00:00Z", "until": "2026-11-20T12:00:00Z"}
    with pytest.raises(UsageError, match="--until is not after --since"):
        audit(empty_shop, **said)
    edit(empty_shop, lambda document: document["streams"]["orders"].pop("source"))
    with pytest.raises(UsageError, match=r"add `streams\.orders\.source`"):
        audit(empty_shop)


def test_the_plot_marks_the_worst_windows_and_leaves_out_narrow_ones() -> None:
    began = datetime(2026, 11, 24, 8, tzinfo=UTC)
    moments = [began, *(began + (number + 0.5) * MINUTE for number in range(9))]
    windows = [
        {
            "start": format_time(start),
            "end": format_time(end),
            "rows": 50,
            "messages": 50 - 7 * (number == 4),
            "handled": None,
            "rows_without_message": 7 * (number == 4) + 3 * (number == 0),
            "messages_without_row": 0,
            "not_handled": None,
        }
        for number, (start, end) in enumerate(pairwise(moments))
    ]
    drawn = make_counts_figure(windows).draw()
    assert drawn.startswith("<svg")
    assert "7 without message" in drawn
    assert "3 without message" not in drawn, "the first one has half a minute"
    assert ">handled<" not in drawn
    assert "no data yet" in make_counts_figure([]).draw()


NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)


def make_record(name: str, *ranges: tuple[int, int, int]) -> ArchiveRecord:
    kept = tuple(ArchivedRange(*item, item[2] - item[1], NOON, NOON) for item in ranges)
    return ArchiveRecord(name, "o", "main", "o", "id", "/a", "0" * 64, 1, 1, kept, NOON)


def test_each_offset_is_read_once_and_a_gone_stretch_ends_what_joins_on() -> None:
    newest = make_record("r-2", (0, 60, 100), (1, 10, 40), (2, 0, 0))
    # It overlaps the newer one, in two ranges of one partition.
    older = make_record("r-1", (0, 0, 30), (0, 30, 80), (2, 0, 5))
    found = find_archived([newest, older], {0: 90, 1: 50, 2: 0})
    assert [(part.record.recovery_id, part.ranges) for part in found.parts] == [
        ("r-2", (OffsetRange(0, 60, 90), OffsetRange(1, 10, 40))),
        ("r-1", (OffsetRange(0, 0, 30), OffsetRange(0, 30, 60))),
    ]
    assert found.begins == {0: 0, 1: 50, 2: 0}
    assert [part.ranges for part in found.list_joined()] == [
        (OffsetRange(0, 60, 90),),
        (OffsetRange(0, 0, 30), OffsetRange(0, 30, 60)),
    ]
    assert [part.ranges for part in found.list_joined(40)] == [
        (OffsetRange(0, 0, 30), OffsetRange(0, 30, 40))
    ]


def test_what_killed_audits_left_goes_and_what_works_stays(tmp_path: Path) -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    host = socket.gethostname()
    names = {
        f"audit-{host}-{done.pid}-abc": False,
        f"audit-{host}-{os.getpid()}-abc": True,
        f"audit-else-where-{done.pid}-abc": True,
        f"audit-old-host-{done.pid}-abc": False,
        "r-20261124-0001": True,
        "audit-notes": True,
    }
    for name in names:
        (tmp_path / name / "consumed").mkdir(parents=True)
        (tmp_path / name / "consumed" / "part-0.parquet").write_text("o-1")
    os.utime(tmp_path / f"audit-old-host-{done.pid}-abc", (1, 1))
    sweep_folders(tmp_path)
    assert {name: (tmp_path / name).exists() for name in names} == names
