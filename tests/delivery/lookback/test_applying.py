"""Records of the look-back topic become rows, in any order and as often as they are read."""

from __future__ import annotations

import pytest

from backlogctl_delivery.lookback.admin import list_incidents, park_message, resume_messages
from backlogctl_delivery.lookback.intake import Record, apply_records
from backlogctl_delivery.lookback.messages import (
    Incident,
    NotReadable,
    Prepared,
    State,
    read_envelope,
    write_envelope,
)
from backlogctl_delivery.lookback.settings import LookBackSettings
from backlogctl_delivery.lookback.tables import Database
from tests.delivery.lookback.world import Teller


def _kinds(database: Database) -> list[str]:
    return [one["kind"] for one in list_incidents(database, 100)]


def test_a_commit_that_overtakes_its_prepare_is_kept_and_applied(teller: Teller) -> None:
    teller.commit("1")
    assert teller.state("1") == State.COMMITTED
    teller.prepare("1", headers=(("type", None), ("type", b"\xff")))
    row = teller.find("1")
    assert row["state"] == State.FORWARDING
    assert (row["decided_by"], row["value"]) == ("application", b"v")
    assert row["headers"] == [["type", None], ["type", "/w=="]]
    assert _kinds(teller.database) == []


def test_a_roll_back_that_overtakes_its_prepare_ends_it(teller: Teller) -> None:
    teller.roll_back("1")
    teller.prepare("1")
    assert teller.state("1") == State.ROLLED_BACK


def test_fault_51_a_commit_after_a_roll_back_is_a_conflict(teller: Teller) -> None:
    teller.prepare("1")
    teller.roll_back("1")
    teller.commit("1")
    teller.prepare("2")
    teller.commit("2")
    teller.roll_back("2")
    assert (teller.state("1"), teller.state("2")) == (State.ROLLED_BACK, State.FORWARDING)
    assert _kinds(teller.database) == [
        Incident.ROLL_BACK_AFTER_COMMIT,
        Incident.COMMIT_AFTER_ROLL_BACK,
    ]


def test_fault_51_a_commit_after_parking_is_a_conflict_and_a_resume_asks(teller: Teller) -> None:
    teller.prepare("1")
    park_message(teller.database, teller.find("1")["id"], "somebody")
    teller.commit("1")
    row = teller.find("1")
    assert (row["state"], row["decision"]) == (State.PARKED, None)
    assert _kinds(teller.database) == [Incident.COMMIT_AFTER_PARKING]
    assert resume_messages(teller.database, teller.settings, None, 10) == [row["id"]]
    assert teller.state("1") == State.PREPARED


def test_a_commit_that_is_parked_for_its_prepare_is_forwarded_when_that_comes(
    teller: Teller,
) -> None:
    teller.commit("1")
    park_message(teller.database, teller.find("1")["id"], "somebody")
    teller.prepare("1")
    assert teller.state("1") == State.FORWARDING


def test_records_that_are_read_again_change_nothing(
    database: Database, settings: LookBackSettings, teller: Teller
) -> None:
    prepared = Prepared("payment", "1", "payments", "out", None, None, ())
    other = Prepared("payment", "1", "payments", "elsewhere", None, None, ())
    values: list[bytes | None] = [
        write_envelope(prepared),
        b'{"event":"committed","biz_type":"payment","biz_id":"1"}',
    ]
    values += [write_envelope(other), b"nonsense", None]
    records = [Record("topic", 0, offset, value) for offset, value in enumerate(values)]
    first = apply_records(database, settings, records)
    row = teller.find("1")
    assert (row["state"], row["key"], row["value"], row["topic"]) == (
        "forwarding",
        None,
        None,
        "out",
    )
    assert first.incidents == {Incident.OTHER_MESSAGE: 1, Incident.UNREADABLE: 2}
    sending = teller.find_sending("1")
    apply_records(database, settings, records)
    assert (teller.find("1"), teller.find_sending("1")) == (row, sending)
    assert len(_kinds(database)) == 3


@pytest.mark.parametrize(
    "value",
    [
        b"[]",
        b"\xff",
        b'{"event":"begun","biz_type":"a","biz_id":"b"}',
        b'{"event":"committed","biz_type":"a"}',
        b'{"event":"committed","biz_type":"a","biz_id":"\\u0000"}',
        b'{"event":"prepared","biz_type":"a","biz_id":"b","service":"s","topic":"t/t"}',
        b'{"event":"prepared","biz_type":"a","biz_id":"b","service":"s","topic":"t",'
        b'"headers":[["a\\u0000b",null]]}',
        b'{"event":"prepared","biz_type":"a","biz_id":"b","service":"s","topic":"t",'
        b'"headers":[["\\ud800",null]]}',
        b"[" * 100_000,
        b'{"event":"prepared","biz_type":"a","biz_id":"b","service":"s","topic":"t","value":"%"}',
    ],
)
def test_what_cannot_be_read_is_told_without_what_it_holds(value: bytes) -> None:
    with pytest.raises(NotReadable) as caught:
        read_envelope(value)
    assert "t/t" not in str(caught.value)
