"""`backlogctl transactions`: what is open, and an abort that somebody has confirmed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backlogctl.clock import Deadline
from backlogctl.kafka.admin import list_offsets
from backlogctl.kafka.transactions import describe_producers
from backlogctl.ledger import Ledger, open_ledger
from backlogctl.ledger.transactions import AbortedTransaction
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.kit.kafka import properties_of, publish, read_all, set_offsets_raw
from tests.kit.ledger import NOON
from tests.kit.transactions import leave_open, open_raw, run_transactions, write_hanging
from tests.replay.conftest import Verb


@pytest.fixture
def name(kafka: EmbeddedKafka, topic: MakeTopic, group: str, tmp_path: Path) -> str:
    """A stream `orders` on a topic of two partitions, read to the end."""
    made = topic(partitions=2)
    config = {
        "ledger": "sqlite:///ledger.db",
        "clusters": {"main": {"bootstrap.servers": kafka.bootstrap}},
        "streams": {"orders": {"cluster": "main", "topic": made, "group": group}},
    }
    (tmp_path / "backlog.yaml").write_text(json.dumps(config))
    properties = properties_of(kafka.bootstrap)
    publish(properties, made, {0: 10, 1: 10})
    set_offsets_raw(properties, group, made, {0: 10, 1: 10})
    return made


def test_a_transaction_is_aborted_only_by_its_name(
    properties: dict[str, str], name: str, unique: str, verb: Verb, tmp_path: Path
) -> None:
    assert "no transaction is open" in verb("transactions", "list", "orders").out
    leave_open(properties, name, f"left-{unique}", count=3)
    publish(properties, name, {0: 20})
    said = verb("status", code=0)
    assert "backlogctl transactions list orders" in said.out
    verb("status", "--check", code=1)

    document = json.loads(verb("transactions", "list", "orders", "--json").out)
    (one,) = document["transactions"]
    assert (one["partition"], one["start"], one["behind"]) == (0, 10, 23)
    assert (one["transactional_id"], one["fate"]) == (f"left-{unique}", "ongoing")
    assert one["ends_by"] > one["started_at"]
    assert (one["is_writing"], document["aborted"]) == (True, [])

    words = ("transactions", "abort", "orders", "--partition", "0", "--start-offset")
    said = verb(*words, "11", code=2)
    assert "no open transaction begins at offset 11" in said.err
    said = verb(*words, "10", code=2)
    assert "nobody confirmed it: nothing was aborted" in said.err
    assert f"--confirm left-{unique}" in said.err
    said = verb(*words, "10", "--confirm", name, code=5)
    assert "is not its name: nothing was aborted" in said.err
    with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        assert ledger.aborts.list("orders") == ()

    said = verb(*words, "10", "--confirm", f"left-{unique}")
    assert "this discards 3 messages" in said.err
    assert "its producer is fenced" in said.err
    assert "20 offsets of others behind it can be read then" in said.err
    assert "its coordinator aborted it" in said.out
    assert len(read_all(properties, name, [0])) == 30
    document = json.loads(verb("transactions", "list", "orders", "--json").out)
    assert document["transactions"] == []
    (done,) = document["aborted"]
    assert (done["discarded"], done["held"], done["failure"]) == (3, 23, "")
    assert done["actor"].startswith("os:")
    assert "its coordinator aborted it" in verb("transactions", "list", "orders").out


def test_a_hanging_one_is_offered_to_be_aborted_and_confirmed_by_the_topic(
    properties: dict[str, str], name: str, verb: Verb
) -> None:
    write_hanging(properties, name, partition=1, count=5)
    said = verb("transactions", "list", "orders")
    assert "never by itself" in said.out
    assert "backlogctl transactions abort orders --partition 1 --start-offset 10" in said.out
    words = ("transactions", "abort", "orders", "--partition", "1", "--start-offset", "10")
    document = json.loads(verb(*words, "--confirm", name, "--json").out)
    assert (document["transactional_id"], document["discarded"]) == (None, 5)
    assert document["how"] == "the leader of its partition wrote the abort marker"
    stable = list_offsets(properties, name, [1], "latest", "read_committed")
    assert stable == {1: 16}


def test_fault_183_one_that_its_coordinator_may_have_committed_is_not_offered_to_be_aborted(
    properties: dict[str, str], name: str, unique: str, verb: Verb
) -> None:
    run_transactions(properties, name, f"done-{unique}", (3, True))
    with open_raw(properties) as client:
        place = (client, name, frozenset([0]))
        rows = client.run(lambda: describe_producers(*place), Deadline(60.0))
        (row,) = [row for row in rows[0] if row.coordinator_epoch >= 0]
    epoch = row.producer_epoch
    write_hanging(
        properties, name, producer_id=row.producer_id, epoch=epoch, sequence=row.last_sequence + 1
    )
    said = verb("transactions", "list", "orders")
    assert "perhaps committed" in said.out
    assert "transactions abort" not in said.out
    words = ("transactions", "abort", "orders", "--partition", "0", "--start-offset", "14")
    said = verb(*words, "--confirm", f"done-{unique}", code=5)
    assert "does not say that it was aborted" in said.err
    assert list_offsets(properties, name, [0], "latest", "read_committed") == {0: 14}
    said = verb(*words, "--confirm", f"done-{unique}", "--even-if-committed")
    assert "its coordinator says CompleteCommit" in said.err
    assert list_offsets(properties, name, [0], "latest", "read_committed") == {0: 20}


def test_a_group_that_no_stream_is_about_is_told_how_to_look(
    properties: dict[str, str], name: str, group: str, unique: str, verb: Verb
) -> None:
    leave_open(properties, name, f"left-{unique}")
    place = ("--bootstrap", properties["bootstrap.servers"], "--group", group)
    said = verb("status", *place)
    assert f"backlogctl transactions list --bootstrap {place[1]} --group {group}" in said.out
    assert f"left-{unique}" in verb("transactions", "list", *place).out


def test_an_abort_is_on_record_before_it_is_done(ledger: Ledger) -> None:
    asked = AbortedTransaction(
        *("", "orders", "main", "orders", 0, 10, 7, 0, "left", 3, 23, "os:ada", NOON)
    )
    begun = ledger.aborts.begin(asked)
    assert begun.id.startswith("t-")
    assert ledger.aborts.list("orders") == (begun,), "as a crash leaves it"
    ended = ledger.aborts.end(begun.id, how="its coordinator aborted it")
    again = ledger.aborts.begin(asked)
    assert ledger.aborts.list("orders") == (again, ended)
    assert ledger.aborts.list("bills") == ()
