"""From the log: by offsets, time, key and SQL, twice; to a rehearsal or another topic; killed."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from backlogctl.kafka.admin import create_topic, describe_topic, list_topic_readers, read_metadata
from backlogctl.manifests import MESSAGE_BYTES
from backlogctl.replay.injection import target
from tests.conftest import MakeTopic
from tests.kit.kafka import commit, delete_topic, set_config
from tests.kit.shop import PARTITIONS, Shop, place
from tests.kit.transactions import limit_rates
from tests.replay.redrive.world import (
    AT,
    KEEP,
    carry_out,
    keys_of,
    make_order,
    make_value,
    plan,
    publish,
    read_sent,
    run,
)

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("spark")]


TOTAL = 60


@pytest.fixture
def filled(empty_shop: Shop) -> Shop:
    """60 orders, a second apart."""
    set_config(empty_shop.properties, empty_shop.topic, KEEP)
    trace = [("trace", b"1"), ("trace", b"2"), ("null", None), ("empty", b"")]
    publish(empty_shop, empty_shop.topic, [make_order(number, trace) for number in range(TOTAL)])
    return empty_shop


def key(number: int) -> bytes:
    return str(number).encode()


def test_by_offsets_then_again(filled: Shop) -> None:
    """Both ends are included; bytes and headers are as they were; a second plan finds nothing."""
    planned = carry_out(filled, "--from", "log", "--offsets", "0:2-5", "--offsets", "1:3")
    mine = {p: [n for n in range(TOTAL) if place(n) == p] for p in range(3)}
    expected = [*mine[0][2:6], mine[1][3]]
    assert planned["counts"]["staged"] == len(expected)
    assert [row["start"] for row in planned["partitions"]] == [2, 3]
    assert [row["end"] for row in planned["partitions"]] == [6, 4]
    sent = read_sent(filled)
    assert [(one.key, one.value) for one in sorted(sent, key=lambda s: int(s.key or b""))] == [
        (key(number), make_value(number)) for number in sorted(expected)
    ]
    assert {one.headers for one in sent} == {
        (("trace", b"1"), ("trace", b"2"), ("null", None), ("empty", b""))
    }
    assert {one.replays for one in sent} == {1}
    assert all(one.partition == place(int(one.key or b"")) for one in sent)
    refused = plan(filled, "--from", "log", "--offsets", "0:2-5", code=5)
    assert "put back already" in refused["message"]
    more = plan(filled, "--from", "log", "--offsets", "0:2-7")
    assert (more["counts"]["put_back"], more["counts"]["staged"]) == (4, 2)


def test_by_time_key_and_where(filled: Shop) -> None:
    """Times are those of the messages; a filter is evaluated while planning."""
    since = datetime.fromtimestamp(AT / 1000 + 10, UTC).isoformat()
    until = datetime.fromtimestamp(AT / 1000 + 30, UTC).isoformat()
    where = "get_json_object(value, '$.status') = 'PAID' and headers['trace'] = '2'"
    planned = plan(filled, "--from", "log", "--since", since, "--until", until, "--where", where)
    assert planned["counts"]["read"] == 20
    assert planned["counts"]["staged"] == planned["counts"]["filtered"] == 10
    run(filled, planned["id"])
    assert keys_of(read_sent(filled)) == Counter(key(n) for n in range(11, 30, 2))

    file = filled.directory / "keys.txt"
    file.write_text("50\n52\n\n999\n")
    by_key = plan(filled, "--from", "log", "--key", f"@{file}", "--key", "7")
    assert (by_key["counts"]["staged"], by_key["keys"]) == (3, 4)
    shown = filled.call("show", by_key["id"]).out
    assert "4 keys" in shown
    assert '"order_id": 7' in shown, "a preview, for the operator's terminal"
    assert "order_id" not in filled.call("show", by_key["id"], "--json").out
    assert b"order_id" not in (filled.directory / "ledger.db").read_bytes()


def test_what_is_masked_is_not_previewed(filled: Shop) -> None:
    filled.write_config(mask=["email", "key"])
    where = "value like '%u7@x.org%'"
    planned = plan(filled, "--from", "log", "--key", "7", "--where", where)
    assert "u7@x.org" not in json.dumps(planned)
    assert b"u7@x.org" not in (filled.directory / "ledger.db").read_bytes()
    shown = filled.call("show", planned["id"]).out
    assert '"order_id": 7' in shown
    assert "u7@x.org" not in shown
    assert planned["options"]["key"] == []
    assert planned["keys"] == 1
    wrong = (("u7@x.org = 1", 2), ("value like '%u7@x.org%' and cast(value as int) = 1", 1))
    for where, code in wrong:
        words = ("plan", "redrive", filled.stream, "--from", "log", "--all", "--where", where)
        refused = filled.call(*words, code=code)
        told = refused.out + refused.err
        assert "--where" in told
        assert "u7@x.org" not in told
        assert "order_id" not in told


def test_an_error_quotes_no_message(filled: Shop) -> None:
    where = "cast(value as int) = 1"
    broken = plan(filled, "--from", "log", "--all", "--where", where, code=1)
    assert where in broken["message"]
    assert "CAST_INVALID_INPUT" in broken["message"]
    assert "order_id" not in json.dumps(broken)


def test_what_is_wrong_is_said(filled: Shop) -> None:
    """Nothing is guessed: bounds, ranges, sources, SQL and limits are named."""
    assert "--all" in plan(filled, "--from", "log", code=2)["hint"]
    assert "--from log" in plan(filled, "--all", code=2)["hint"]
    wrong = plan(filled, "--from", "log", "--offsets", "0:5-2", code=2)
    assert wrong["subject"] == "--offsets 0:5-2"
    assert "no partition 9" in plan(filled, "--from", "log", "--offsets", "9:1", code=2)["message"]
    sql = plan(filled, "--from", "log", "--all", "--where", "stat = 'PAID'", code=2)
    assert sql["subject"] == "--where stat = 'PAID'"
    assert "stat" in sql["message"]
    code = plan(filled, "--from", "log", "--all", "--where", "rand() > 0.5", code=2)
    assert "another result each time" in code["message"]
    broken = plan(filled, "--from", "log", "--all", "--where", "cast(key as date) is null", code=1)
    assert "cast(key as date)" in broken["message"]
    none = plan(filled, "--from", "log", "--all", "--where", "key = 'nobody'", code=5)
    assert f"{TOTAL} match no --key or --where" in none["message"]
    gone = plan(filled, "--from", "log", "--offsets", "0:9000-9005", code=5)
    assert "9,000–9,005" in gone["message"]
    since = datetime.fromtimestamp(AT / 1000 + 30, UTC).isoformat()
    old = plan(filled, "--from", "log", "--offsets", "0:0-5", "--since", since, code=5)
    assert old["message"] == "there is no message in what was asked for", "they are there"
    assert plan(filled, "--from", "dlq:nowhere", "--all", code=2)["subject"] == "topic nowhere"
    assert plan(filled, "--from", "archive:r-1", "--all", code=2)["subject"] == "archive r-1"
    filled.write_config(limits={"max_messages": 10})
    whole = plan(filled, "--from", "log", "--all", code=5)
    assert "`limits.max_messages` (10)" in whole["message"]
    some = plan(filled, "--from", "log", "--offsets", "0:0-11", code=5)
    assert "12 messages are more" in some["message"]
    assert list((filled.directory / "staging").iterdir()) == []


KEYS = {str(number).encode(): 1 for number in range(TOTAL)}


@pytest.fixture
def ordered(empty_shop: Shop) -> Shop:
    set_config(empty_shop.properties, empty_shop.topic, KEEP)
    publish(empty_shop, empty_shop.topic, [make_order(number) for number in range(TOTAL)])
    return empty_shop


def exists(shop: Shop, topic: str) -> bool:
    return topic in read_metadata(shop.properties).topics


def test_a_rehearsal_disturbs_nobody(ordered: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A side topic is made, compared, and thrown away when its time is over; the real redrive
    afterwards is neither hindered nor reduced by it."""
    first = carry_out(ordered, "--from", "log", "--all", "--to", "rehearsal")
    side = first["target"]["topic"]
    assert side.startswith(f"{ordered.topic}.rehearsal.")
    assert keys_of(read_sent(ordered, side)) == KEYS
    assert read_sent(ordered) == []
    assert describe_topic(ordered.properties, side).config["retention.ms"] == str(24 * 3_600_000)
    assert ordered.group not in list_topic_readers(ordered.properties, side).known
    second = carry_out(ordered, "--from", "log", "--all", "--to", "rehearsal")
    assert second["counts"]["staged"] == TOTAL
    assert second["target"]["topic"] != side

    real = carry_out(ordered, "--from", "log", "--all")
    assert (real["counts"]["staged"], real["counts"]["put_back"]) == (TOTAL, 0)
    assert keys_of(read_sent(ordered)) == KEYS

    workspace = ordered.open()
    assert target.clear_rehearsals(workspace, "orders") == ()
    now = workspace.ledger.now() + timedelta(hours=25)
    monkeypatch.setattr(type(workspace.ledger), "now", lambda _: now)
    assert set(target.clear_rehearsals(workspace, "orders")) == {first["id"], second["id"]}
    assert not exists(ordered, side)
    assert target.clear_rehearsals(workspace, "orders") == ()


def test_cancel_of_a_rehearsal_deletes_its_topic(ordered: Shop) -> None:
    planned = plan(ordered, "--from", "log", "--all", "--to", "rehearsal")
    ordered.call("approve", planned["id"], "--by", "Ada")
    said = ordered.run("run", planned["id"], code=None, BACKLOG_CRASH_AT="p3.7.copy.before:2")
    assert said.code == -signal.SIGKILL
    assert exists(ordered, planned["target"]["topic"])
    assert "thrown away" in ordered.call("cancel", planned["id"]).out
    assert not exists(ordered, planned["target"]["topic"])


def test_another_topic_with_other_partitions(ordered: Shop, topic: MakeTopic) -> None:
    """By key, in the order of the source; who reads it is named and does not hinder."""
    other = topic(PARTITIONS - 1, KEEP, name="other")
    publish(ordered, other, [replace(make_order(0), partition=0)])
    commit(ordered.properties, f"audit-{ordered.group}", other, {0: 1})
    planned = carry_out(ordered, "--from", "log", "--all", "--to", other)
    assert planned["other_groups"] == [f"audit-{ordered.group}"]
    assert "go by their keys" in " ".join(planned["warnings"])


def test_a_topic_that_was_made_anew_has_nothing_yet(ordered: Shop, topic: MakeTopic) -> None:
    other = topic(PARTITIONS, KEEP, name="again")
    carry_out(ordered, "--from", "log", "--offsets", "0:0-4", "--to", other)
    assert plan(ordered, "--from", "log", "--offsets", "0:0-4", "--to", other, code=5)
    delete_topic(ordered.properties, other)
    create_topic(ordered.properties, other, partitions=PARTITIONS, config=KEEP)
    anew = carry_out(ordered, "--from", "log", "--offsets", "0:0-4", "--to", other)
    assert (anew["counts"]["put_back"], anew["counts"]["staged"]) == (0, 5)
    assert len(read_sent(ordered, other)) == 5


def test_fault_01_killed_in_the_middle_and_run_again(ordered: Shop) -> None:
    """SIGKILL after a commit, before its copy into SQL: taken over at once, the same set."""
    ordered.write_config(limits={"messages_per_second": 30})
    planned = plan(ordered, "--from", "log", "--all")
    ordered.call("approve", planned["id"], "--by", "Ada")
    said = ordered.run("run", planned["id"], code=None, BACKLOG_CRASH_AT="p3.7.copy.before:2")
    assert said.code == -signal.SIGKILL
    ledger = ordered.open().ledger
    assert ledger.recoveries.get(planned["id"]).state == "running"
    assert 0 < ledger.recoveries.get(planned["id"]).injected < len(read_sent(ordered)) < TOTAL
    ordered.write_config(limits={})
    done = ordered.call("run", planned["id"], "--json").document
    assert done["state"] == "verified"
    assert done["counts"]["injected"] + done["counts"]["skipped"] == TOTAL
    assert done["counts"]["skipped"] > 0
    assert ledger.recoveries.get(planned["id"]).injected == TOTAL
    assert "lease taken over" in [event.action for event in ledger.events.list(planned["id"])]
    assert keys_of(read_sent(ordered)) == KEYS


def test_a_share_of_the_quota_is_kept_to(ordered: Shop) -> None:
    """As it is when it is planned, and when it runs."""
    ordered.write_config(limits={"quota_share": "50%"})
    place = ordered.directory / "backlog.yaml"
    document = json.loads(place.read_text())
    document["clusters"]["main"]["client.id"] = ordered.group
    place.write_text(json.dumps(document))
    limit_rates(ordered.properties, ordered.group, producer_byte_rate=10_000.0)
    planned = plan(ordered, "--from", "log", "--all")
    shown = ordered.call("show", planned["id"]).out
    assert "at most 5.0 kB/s: 50 % of the quota of" in " ".join(shown.split())
    limit_rates(ordered.properties, ordered.group, producer_byte_rate=20_000.0)
    began = time.monotonic()
    run(ordered, planned["id"])
    assert time.monotonic() - began > TOTAL * MESSAGE_BYTES / 10_000.0 / 2
    events = ordered.open().ledger.events.list(planned["id"])
    said = [event.detail["message"] for event in events if event.action == "said"]
    assert any(message.startswith("writes at most 10.0 kB/s") for message in said)
    assert not [message for message in said if "throttled" in message]


def test_other_readers_must_be_allowed(ordered: Shop) -> None:
    audit = f"audit-{ordered.group}"
    commit(ordered.properties, audit, ordered.topic, {0: 1})
    planned = plan(ordered, "--from", "log", "--offsets", "0:0")
    assert planned["other_groups"] == [audit]
    refused = ordered.call("approve", planned["id"], "--by", "Ada", "--json", code=5).error
    assert "deliver: topic" in refused["hint"]
    ordered.write_config(deliver="topic")
    ordered.call("approve", planned["id"], "--by", "Ada")


def test_a_compacted_topic_takes_no_old_message(ordered: Shop) -> None:
    set_config(ordered.properties, ordered.topic, {"cleanup.policy": "compact"})
    refused = plan(ordered, "--from", "log", "--offsets", "0:0", code=5)
    assert "compacted" in refused["message"]
    assert plan(ordered, "--from", "log", "--offsets", "0:0", "--to", "rehearsal")
