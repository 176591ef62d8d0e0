"""What was put back for one group is there for the other; marks are evidence as they are."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from backlogctl.kafka.throttling import Throttling
from backlogctl.ledger.chunks import ChunkRecord
from backlogctl.replay.audits.audit import AuditOptions
from backlogctl.replay.audits.consumed import ConsumedAuditing
from backlogctl.replay.injection.steps import _Tracker
from backlogctl.replay.kinds.rebuild.losses import covers, is_there
from backlogctl.replay.kinds.rebuild.plan import PlannedGap
from backlogctl.spark_backfill.injection.brakes import InjectionProgress
from backlogctl.spark_backfill.injection.transactional import ChunkResult, CommitOutcome
from backlogctl.values import Chunk, ChunkState, PartitionSample
from backlogctl_delivery.idempotent.sql import Marks
from tests.kit.kafka import leave_at, move_log_start, read_all, set_offsets_raw
from tests.kit.ledger import make_gap
from tests.kit.recoveries import make_rebuild_plan
from tests.kit.shop import DONE, LOST, PARTITIONS, Shop, count_by_partition

pytestmark = pytest.mark.timeout(900)


AT = datetime(2026, 11, 1, 12, tzinfo=UTC)
CHUNK = Chunk(0, 0, 10, 100, "hash", "messages/0", "ids/0")


def add_stream(shop: Shop, name: str, group: str, *, consumed: bool) -> None:
    """A second stream on the same topic; not `consumed`: without evidence of what it handled."""
    path = shop.directory / "backlog.yaml"
    document = json.loads(path.read_text())
    source = {**document["streams"]["orders"]["source"]}
    if not consumed:
        del source["consumed"]
    more = {**document["streams"]["orders"], "group": group, "source": source}
    document["streams"][name] = more
    path.write_text(json.dumps(document))


def put_back_for_the_first(shop: Shop, *, consumed: bool = False) -> str:
    """Both groups lost the same orders; the first group's are put back."""
    billing = f"billing-{shop.group}"
    leave_at(shop.properties, billing, shop.topic, count_by_partition(range(DONE)))
    shop.write_config(deliver="topic")
    add_stream(shop, "billing", billing, consumed=consumed)
    shop.call("status")
    recovery = shop.plan_approved()
    shop.call("run", recovery.id)
    shop.check_same_set()
    return recovery.id


def test_what_was_put_back_for_another_group_is_nothing_to_do(
    shop: Shop, spark: SparkSession
) -> None:
    recovery = put_back_for_the_first(shop)
    refused = shop.call("plan", "rebuild", "billing", "--json", code=5).error
    assert "all its lost messages are in the log again" in refused["message"]
    assert f"put back by recovery {recovery} for group {shop.group}" in refused["message"]
    gaps = [gap for gap in shop.open().ledger.gaps.list("billing") if gap.state == "open"]
    assert gaps
    for gap in gaps:
        assert f'backlogctl waive {gap.id} --reason "put back by {recovery}"' in refused["hint"]
        shop.call("waive", gap.id, "--reason", f"put back by {recovery}")
    told = shop.call("plan", "rebuild", "billing", "--json", code=5).error
    assert "nothing is lost" in told["message"]


def test_what_the_group_lost_besides_is_planned(shop: Shop, spark: SparkSession) -> None:
    """The second group's gap is longer at its end in one partition: there it is planned whole."""
    recovery = put_back_for_the_first(shop, consumed=True)
    ends = count_by_partition(range(DONE + LOST))
    # Orders that the first group has read: lost for the second group only.
    set_offsets_raw(shop.properties, shop.group, shop.topic, shop.read_ends())
    move_log_start(shop.properties, shop.topic, {0: ends[0] + 5})
    planned = shop.call(
        "plan", "rebuild", "billing", "--since", "2026-01-01T00:00:00Z", "--json"
    ).document
    assert {gap["partition"] for gap in planned["gaps"]} == {0}
    assert planned["counts"]["already_injected"] == LOST
    assert planned["counts"]["rebuilt"] == 5
    assert any(f"put back by recovery {recovery}" in text for text in planned["warnings"])


def test_only_a_range_that_the_plan_holds_whole_is_covered() -> None:
    gap = make_gap(10, 20)
    plan = make_rebuild_plan(gaps=[PlannedGap.freeze(gap).model_dump()])
    assert covers(plan, gap)
    for other in (
        replace(gap, end=21),
        replace(gap, partition=2),
        replace(gap, start=None, end=None),
    ):
        assert not covers(plan, other)
    rows = tuple(replace(row, shortfall=1) for row in plan.outcome.partitions)
    short = plan.model_copy(update={"outcome": replace(plan.outcome, partitions=rows)})
    assert not covers(short, gap)
    for verdict, uncertain, whole in (
        ("exact", 0, True), ("within", 0, True), ("within", 3, False), ("short", 0, False),
    ):  # fmt: skip
        rows = tuple(replace(row, uncertain=uncertain) for row in plan.outcome.partitions)
        outcome = replace(plan.outcome, verdict=verdict, partitions=rows)
        assert covers(plan.model_copy(update={"outcome": outcome}), gap) is whole


def test_a_chunk_is_there_where_it_is_in_the_log_and_was_not_skipped() -> None:
    def look(first: int | None, committed: int | None, low: int, *gaps: tuple[int, int]) -> bool:
        record = ChunkRecord(CHUNK, ChunkState.INJECTED, first, 109, AT)
        here = PartitionSample(0, low, committed, 120, 120)
        return is_there(record, {0: here}, [make_gap(*gap) for gap in gaps])

    assert look(100, 10, 50, (10, 50)), "not read yet"
    assert look(100, 120, 50, (10, 50)), "read since"
    assert not look(100, 120, 50, (10, 105)), "skipped"
    assert not look(100, 120, 105), "expired again"
    assert not look(100, None, 50), "it may begin anywhere"
    assert not look(None, 10, 50), "where they are is not known"


TABLE = "orders_handled"


def handle(shop: Shop, marks: Marks, messages: Iterable[Any]) -> None:
    engine = sa.create_engine(shop.url, poolclass=sa.NullPool)
    marks.create_tables(engine)
    with engine.begin() as connection:
        for message in messages:
            with marks.handle_once(connection, message) as attempt:
                assert attempt.is_first


def name_marks(shop: Shop, message: str) -> None:
    """All that the configuration says of them."""
    source = json.loads((shop.directory / "backlog.yaml").read_text())["streams"]["orders"][
        "source"
    ]
    source["identity"] = {"row": "order_id", "message": message}
    source["consumed"] = {"database": "shop", "table": TABLE, "column": "message_id"}
    shop.write_config(source=source)


@pytest.mark.usefixtures("spark")
def test_a_rebuild_leaves_out_what_is_marked(shop: Shop) -> None:
    """Ten of the lost ones were handled, and the crash came before their offset was committed."""
    handle(shop, Marks(TABLE), [str(number) for number in range(DONE + 10)])
    name_marks(shop, "key")
    counts = shop.plan().plan["outcome"]["counts"]
    assert (counts["rebuilt"], counts["consumed"]) == (LOST - 10, DONE + 10)


@pytest.mark.usefixtures("spark")
def test_an_audit_finds_what_is_not_marked(empty_shop: Shop) -> None:
    shop = empty_shop
    producer = Producer(shop.properties)
    for number in range(60):
        headers: Any = [("order-id", str(number).encode())]
        producer.produce(shop.topic, b"v", b"k", number % PARTITIONS, headers=headers)
    assert producer.flush(60) == 0
    messages = read_all(shop.properties, shop.topic, range(PARTITIONS))
    set_offsets_raw(shop.properties, shop.group, shop.topic, shop.read_ends())
    unhandled = {(message.partition(), message.offset()) for message in messages[20:27]}
    handle(shop, Marks(TABLE, identity="order-id"), messages[:20] + messages[27:])
    name_marks(shop, "header:order-id")
    workspace = shop.open()
    found = ConsumedAuditing().examine(
        workspace,
        workspace.config.stream(shop.stream),
        AuditOptions.model_validate({"grace": "1ms"}),
        lambda line: None,
    )
    (finding,) = found.findings
    assert (finding.check, found.figures["handled"]) == ("unprocessed", 53)
    assert {
        (item["partition"], at)
        for item in finding.detail["ranges"]
        for at in range(item["first"], item["last"] + 1)
    } == unhandled


# What a run says of the transactions that put messages back.


def test_fault_174_a_run_says_once_that_a_quota_holds_it_up_and_what_writes() -> None:
    said: list[str] = []
    shown: list[str] = []
    bar = SimpleNamespace(say=shown.append, move=lambda *_, **__: None)
    marked = SimpleNamespace(chunks=SimpleNamespace(mark_injected=lambda *_: None))
    context: Any = SimpleNamespace(
        found={},
        say=said.append,
        bar=bar,
        workspace=SimpleNamespace(ledger=marked),
        recovery=SimpleNamespace(id="r-1"),
    )
    tracker = _Tracker(context)
    for throttling in (Throttling(0.5, 10.0), Throttling(6.0, 10.0), Throttling(12.0, 20.0)):
        tracker.note_chunk(ChunkResult(0, 0, 10, CommitOutcome.INJECTED, not_wire="no numba"))
        tracker.note_progress(InjectionProgress(10, 0, 30, throttling=throttling))
    assert [told.split(":")[0] for told in said] == [
        "messages are sent one by one, slower",
        "brokers throttled what was put back for 6 s of the 10 s that transactions took",
    ]
    throttled = "injecting, throttled by a quota"
    assert shown == ["injecting", throttled, throttled]
