"""`audit consumed` of real groups: what they committed and never handled, and nothing else."""

from __future__ import annotations

import io
import itertools
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from confluent_kafka import Producer
from rich.console import Console

from backlogctl.errors import ConfigurationError, UsageError
from backlogctl.kafka.admin import list_offsets
from backlogctl.kafka.groups import committed_offsets
from backlogctl.replay.audits.audit import AuditFinding, AuditLevel, AuditOptions, AuditResult
from backlogctl.replay.audits.consumed import ConsumedAuditing
from backlogctl.replay.present.tables import render_audit
from backlogctl.replay.runbooks.descriptions import is_alarming
from tests.kit.kafka import set_config, set_offsets_raw, wait_until
from tests.kit.processes import ROOT
from tests.kit.shop import PARTITIONS, PROCESSED, Shop
from tests.spark_backfill.world import fill_table, make_order, open_database, publish_orders

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("spark")]

# Handles before it commits; with a number: the batch after so many messages is committed first, and
# then it hangs. The member is a static one: who comes after a kill waits for nobody.
_CONSUMER = """
import json, sys, threading
import sqlalchemy as sa
from confluent_kafka import Consumer, TopicPartition

bootstrap, topic, group, url, careless_after, seconds = sys.argv[1:]
engine = sa.create_engine(url, connect_args={"timeout": 60})
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "group.instance.id": "one",
    "auto.offset.reset": "earliest", "enable.auto.commit": False, "fetch.wait.max.ms": 50})
consumer.subscribe([topic])
handled = 0
while True:
    batch = [one for one in consumer.consume(10, 0.5) if one.error() is None]
    if not batch:
        continue
    ends = {}
    for one in batch:
        ends[one.partition()] = one.offset() + 1
    commits = [TopicPartition(topic, number, at) for number, at in ends.items()]
    if careless_after != "never" and handled >= int(careless_after):
        consumer.commit(offsets=commits, asynchronous=False)
        print(json.dumps([[one.partition(), one.offset()] for one in batch]), flush=True)
        threading.Event().wait()
    with engine.begin() as connection:
        for one in batch:
            connection.execute(sa.text("INSERT INTO processed VALUES (:id)"), {"id": int(one.key())})
    handled += len(batch)
    threading.Event().wait(float(seconds))  # its work takes that long
    consumer.commit(offsets=commits, asynchronous=False)
"""


@contextmanager
def consuming(
    shop: Shop, careless_after: str = "never", seconds: float = 0.0
) -> Iterator[subprocess.Popen[str]]:
    """A consumer of its own process; it is killed, and never leaves its group."""
    words = (shop.bootstrap, shop.topic, shop.group, shop.url, careless_after, str(seconds))
    process = subprocess.Popen(
        [sys.executable, "-c", _CONSUMER, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()


def audit(shop: Shop, **bounds: object) -> AuditResult:
    """What is committed now is old enough, unless something else is said."""
    options = AuditOptions.model_validate({"grace": "1ms", **bounds})
    workspace = shop.open()
    stream = workspace.config.stream(shop.stream)
    return ConsumedAuditing().examine(workspace, stream, options, lambda line: None)


def checks(found: AuditResult) -> list[tuple[str, AuditLevel]]:
    return [(one.check, one.level) for one in found.findings]


def offsets_of(finding: AuditFinding) -> set[tuple[int, int]]:
    return {
        (item["partition"], at)
        for item in finding.detail["ranges"]
        for at in range(item["first"], item["last"] + 1)
    }


def read_handled(shop: Shop) -> list[int]:
    engine = open_database(shop.url)
    with engine.connect() as connection:
        return [row[0] for row in connection.execute(sa.text("SELECT order_id FROM processed"))]


def handle(shop: Shop, numbers: Iterable[int]) -> None:
    fill_table(shop.url, PROCESSED, [{"order_id": number} for number in numbers], "processed")


def commit_all(shop: Shop) -> None:
    set_offsets_raw(shop.properties, shop.group, shop.topic, shop.read_ends())


def has_committed(shop: Shop) -> bool:
    found = committed_offsets(shop.properties, shop.group, shop.topic, range(PARTITIONS))
    return any(offset is not None for offset in found.values())


def is_caught_up(shop: Shop) -> bool:
    """All is committed; a recovery's last marker is no message that a consumer would commit."""
    committed = committed_offsets(shop.properties, shop.group, shop.topic, range(PARTITIONS))
    return all((committed[p] or 0) >= end - 1 for p, end in shop.read_ends().items())


def send(shop: Shop, partition: int, keys: Sequence[bytes | None], **settings: object) -> None:
    producer = Producer({**shop.properties, **settings})
    for key in keys:
        producer.produce(shop.topic, b"v", key, partition)
    assert producer.flush(60) == 0


def test_committed_and_killed_is_found_and_put_back(empty_shop: Shop) -> None:
    """The command that is printed puts exactly these messages back."""
    shop = empty_shop
    orders = range(120)
    handle(shop, [])
    publish_orders(shop.bootstrap, shop.topic, [make_order(number) for number in orders])
    with consuming(shop, "50") as process:
        assert process.stdout is not None
        lost = {(number, at) for number, at in json.loads(process.stdout.readline())}
    assert lost

    found = audit(shop)
    assert checks(found) == [("unprocessed", AuditLevel.LOST)]
    finding = found.findings[0]
    assert offsets_of(finding) == lost
    assert (found.missing, found.exit_code, finding.count) == (len(lost), 1, len(lost))
    assert found.figures["handled"] == len(read_handled(shop))
    console = Console(width=200, file=io.StringIO())
    console.print(render_audit(found.to_json()))
    told = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert f"{len(lost)} messages were committed and are not in table shop.processed" in told
    assert not list((shop.directory / "staging").iterdir()), "the copy of the table is removed"

    said = shop.call("audit", "consumed", shop.stream, "--grace", "1ms", code=1).out
    program, *words = shlex.split(next(line for line in said.splitlines() if "redrive" in line))
    assert (program, words[:2]) == ("backlogctl", ["plan", "redrive"])
    planned = shop.call(*words, "--json").document
    assert planned["counts"]["staged"] == len(lost)
    shop.call("approve", planned["id"], "--by", "Ada")
    assert shop.call("run", planned["id"], "--json").document["state"] == "verified"
    missing = set(orders) - set(read_handled(shop))
    put_back = {int(key or b"-1") for _, key, _ in shop.read_injected()}
    assert len(put_back) == len(lost)
    assert put_back <= missing

    found = audit(shop)
    assert checks(found) == [("coming-again", AuditLevel.NOTED)]
    assert (found.verdict, found.figures["coming_again"]) == ("clean", len(lost))
    with consuming(shop):
        wait_until(
            lambda: sorted(read_handled(shop)) == list(orders) and is_caught_up(shop),
            what="all is handled, each once",
        )
    found = audit(shop)
    assert (found.findings, found.exit_code) == ((), 0)
    assert found.figures["put_back"] == len(lost)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("looks", [3, 100])
def test_a_healthy_busy_group_shows_nothing(empty_shop: Shop, looks: int) -> None:
    """Looked at while it works, with messages coming in and no grace at all."""
    shop = empty_shop
    handle(shop, [])
    numbers, amid = itertools.count(), 0
    with consuming(shop, seconds=0.4):
        for turn in range(looks):
            rows = [make_order(next(numbers)) for _ in range(150 if turn else 1000)]
            publish_orders(shop.bootstrap, shop.topic, rows)
            known = len(read_handled(shop))
            wait_until(lambda known=known: len(read_handled(shop)) > known, what="it works")  # type: ignore[misc]
            wait_until(lambda: has_committed(shop), what="it has committed")
            found = audit(shop)
            amid += not is_caught_up(shop)
            assert found.findings == ()
            assert found.figures["unhandled"] == 0
    assert amid > looks // 2, "it was still at work"


def test_only_what_was_committed_long_ago_is_judged(empty_shop: Shop) -> None:
    """By the samples; a group that was set back works on it once more."""
    shop = empty_shop
    send(shop, 0, [b"%d" % number for number in range(20)])
    handle(shop, range(8))
    set_offsets_raw(shop.properties, shop.group, shop.topic, {0: 10, 1: 0, 2: 0})
    found = audit(shop, grace="1h")
    assert checks(found) == [("not-settled", AuditLevel.UNKNOWN)]
    assert (found.exit_code, found.figures["not_settled"]) == (2, 2)
    samples = shop.open().ledger.samples
    latest = samples.latest(shop.stream)
    assert latest is not None
    samples.add(replace(latest, taken_at=latest.taken_at - timedelta(hours=2)))

    commit_all(shop)
    found = audit(shop, grace="1h")
    assert checks(found) == [("unprocessed", AuditLevel.LOST), ("not-settled", AuditLevel.UNKNOWN)]
    assert offsets_of(found.findings[0]) == {(0, 8), (0, 9)}
    assert "unless the consumer leaves such messages out on purpose" in found.findings[0].mend
    assert found.figures["not_settled"] == 10

    set_offsets_raw(shop.properties, shop.group, shop.topic, {0: 9, 1: 0, 2: 0})
    found = audit(shop, grace="1h")
    assert offsets_of(found.findings[0]) == {(0, 8)}
    set_offsets_raw(shop.properties, shop.group, shop.topic, {0: 20, 1: 0, 2: 0})
    found = audit(shop, grace="1h")
    assert offsets_of(found.findings[0]) == {(0, 8)}, "it was at 9 meanwhile"


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_transactions(empty_shop: Shop, isolation: str) -> None:
    """What was aborted is no message, markers part no range, an open one is said to hide it."""
    shop = empty_shop
    shop.write_config(isolation=isolation)
    producer = Producer({**shop.properties, "transactional.id": shop.topic})
    producer.init_transactions(60)
    for number in range(12):
        producer.begin_transaction()
        producer.produce(shop.topic, b"v", b"%d" % number, 0)
        producer.flush(60)
        if number % 4 == 3:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
    wait_until(
        lambda: (
            list_offsets(shop.properties, shop.topic, [0], "latest", isolation="read_committed")
            == {0: 24}
        ),
        what="the markers are written",
    )
    handle(shop, [0, 1])
    commit_all(shop)
    found = audit(shop)
    assert checks(found) == [("unprocessed", AuditLevel.LOST)]
    (item,) = found.findings[0].detail["ranges"]
    # Orders 2 to 10, without the aborted 3 and 7: the ranges are those of the messages.
    assert (item["first"], item["last"], item["messages"]) == (4, 20, 7)
    assert found.missing == 7

    producer.begin_transaction()
    producer.produce(shop.topic, b"v", b"99", 0)
    producer.flush(60)
    commit_all(shop)
    found = audit(shop)
    hidden = [one for one in found.findings if one.check == "open-transaction"]
    assert [one.level for one in hidden] == [AuditLevel.UNKNOWN]
    assert hidden[0].detail["offsets"] == [[0, 24, 25]]
    producer.abort_transaction(60)


def test_messages_that_share_a_key_are_not_judged(empty_shop: Shop) -> None:
    """A row says of one message of its key that it was handled, and not of which."""
    shop = empty_shop
    send(shop, 0, [b"1", b"2", b"2", b"4", b"4", b"4", None])
    handle(shop, [1, 2, 4])
    commit_all(shop)
    found = audit(shop)
    assert checks(found) == [("repeated-keys", AuditLevel.UNKNOWN)]
    assert (found.verdict, found.exit_code, is_alarming(found.verdict)) == ("unknown", 2, False)
    assert (found.figures["not_judged"], found.figures["without_identity"]) == (5, 1)
    said = "5 messages share a key with another one and were not judged"
    assert found.findings[0].found.startswith(said)
    assert found.claims.startswith(said)

    send(shop, 0, [b"3", b"3"])
    commit_all(shop)
    found = audit(shop)
    assert checks(found) == [
        ("unprocessed", AuditLevel.LOST),
        ("repeated-keys", AuditLevel.UNKNOWN),
    ]
    assert offsets_of(found.findings[0]) == {(0, 7), (0, 8)}, "a key that is wholly absent"

    # Where a header names each message, each is judged.
    by_header = {"row": "order_id", "message": "header:id"}
    document = json.loads((shop.directory / "backlog.yaml").read_text())
    document["streams"]["orders"]["source"]["identity"] = by_header
    (shop.directory / "backlog.yaml").write_text(json.dumps(document))
    found = audit(shop)
    assert found.figures["not_judged"] == 0
    assert "repeated-keys" not in dict(checks(found))


def test_older_than_the_table_is_suspect_until_it_is_said(empty_shop: Shop) -> None:
    """Rows that were removed, or a group that began late, are no loss for all that is known."""
    shop = empty_shop
    publish_orders(shop.bootstrap, shop.topic, [make_order(number) for number in range(30)])
    sent = datetime.now(UTC)
    wait_until(lambda: datetime.now(UTC) > sent + timedelta(milliseconds=1), what="a later time")
    publish_orders(shop.bootstrap, shop.topic, [make_order(number) for number in range(30, 60)])
    handle(shop, [number for number in range(30, 60) if number != 45])
    commit_all(shop)
    found = audit(shop)
    assert checks(found) == [
        ("unprocessed", AuditLevel.LOST),
        ("older-than-the-table", AuditLevel.SUSPECT),
    ]
    assert (found.missing, len(offsets_of(found.findings[1]))) == (1, 30)
    (command,) = found.findings[1].commands
    since = shlex.split(command)[-1]
    found = audit(shop, since=since)
    assert checks(found) == [("unprocessed", AuditLevel.LOST)]
    assert found.missing == 31


def test_no_match_at_all_suspects_the_table(empty_shop: Shop) -> None:
    shop = empty_shop
    send(shop, 1, [b"1", b"2"])
    handle(shop, [77])
    commit_all(shop)
    found = audit(shop)
    assert checks(found) == [("no-match", AuditLevel.SUSPECT)]
    assert found.missing == 0
    assert "redrive" not in found.findings[0].commands[0]


def test_many_ranges_and_a_compacted_topic(empty_shop: Shop) -> None:
    shop = empty_shop
    send(shop, 2, [b"%d" % number for number in range(61)])
    handle(shop, range(0, 61, 2))
    commit_all(shop)
    found = audit(shop)
    (finding,) = found.findings
    assert len(finding.detail["ranges"]) == finding.count == len(found.losses) == 30
    set_config(shop.properties, shop.topic, {"cleanup.policy": "compact"})
    found = audit(shop)
    (finding,) = found.findings
    assert (finding.check, found.losses) == ("unprocessed", ())
    assert "compacted" in finding.mend


def test_what_it_needs_is_said(empty_shop: Shop) -> None:
    """The table, the group's offsets, and what to configure."""
    shop = empty_shop
    fill_table(shop.url, "CREATE TABLE other (order_id BIGINT)", [], "other")
    with pytest.raises(ConfigurationError, match="processed"):
        audit(shop)
    handle(shop, [])
    found = audit(shop)
    assert checks(found) == [("nothing-committed", AuditLevel.UNKNOWN)]
    document = json.loads((shop.directory / "backlog.yaml").read_text())
    del document["streams"]["orders"]["source"]["consumed"]
    (shop.directory / "backlog.yaml").write_text(json.dumps(document))
    with pytest.raises(UsageError) as told:
        audit(shop)
    assert "streams.orders.source.consumed" in told.value.hint
    del document["streams"]["orders"]["source"]
    (shop.directory / "backlog.yaml").write_text(json.dumps(document))
    with pytest.raises(UsageError, match="no table of it is configured"):
        audit(shop)
