"""From the log: by offsets, time, key and SQL; twice; what is wrong is said."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime

import pytest

from tests.kafka_tools import set_config
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
from tests.replay.shop import Shop, place

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


def test_more_than_the_limit_is_refused(filled: Shop) -> None:
    filled.write_config(limits={"max_messages": 10})
    whole = plan(filled, "--from", "log", "--all", code=5)
    assert "`limits.max_messages` (10)" in whole["message"]
    some = plan(filled, "--from", "log", "--offsets", "0:0-11", code=5)
    assert "12 messages are more" in some["message"]
    assert plan(filled, "--from", "log", "--offsets", "0:0-4")["counts"]["staged"] == 5


def test_what_is_wrong_is_said(filled: Shop) -> None:
    """Nothing is guessed: bounds, ranges, sources and SQL are named."""
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
    assert list((filled.directory / "staging").iterdir()) == []
