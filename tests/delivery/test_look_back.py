"""What events make of a message, in every order; `backlogctl lookback` for operators."""

from __future__ import annotations

import json
import stat
import time
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import kafka as kafka_python
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select, text

from backlogctl.config import Config
from backlogctl.errors import ConfigurationError, KafkaFailure, UsageError
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl_delivery.lookback import retention
from backlogctl_delivery.lookback.admin import list_incidents, park_message, resume_messages
from backlogctl_delivery.lookback.intake import Record, apply_records
from backlogctl_delivery.lookback.messages import (
    ENDED,
    Decided,
    Decision,
    Event,
    Incident,
    MessageStatus,
    NotReadable,
    Prepared,
    State,
    decide_step,
    read_envelope,
    settle,
    write_envelope,
)
from backlogctl_delivery.lookback.metrics import CATALOGUE, Metrics
from backlogctl_delivery.lookback.producer import LookBackProducer
from backlogctl_delivery.lookback.retention import purge_old
from backlogctl_delivery.lookback.settings import LookBackSettings
from backlogctl_delivery.lookback.tables import (
    MESSAGES,
    LookBackDatabase,
    create_tables,
    list_partitions,
)
from tests.conftest import MakeTopic
from tests.delivery.kit import Teller, add_old, make_settings
from tests.kit.kafka import read_all, run_together, wait_until
from tests.kit.prometheus import scrape_registry
from tests.kit.shop import call_main


@given(st.lists(st.sampled_from([*Event, "asked committed", "asked rolled back", "park", "send"])))
def test_fault_51_a_decision_never_changes_and_an_end_is_an_end(happenings: list[str]) -> None:
    standing: MessageStatus | None = None
    sent = False
    for one in happenings:
        before = standing
        if one == "send":
            if standing is not None and standing.state is State.FORWARDED:
                standing = MessageStatus(State.FORWARDED, standing.decision, True)
                sent = True
            continue
        if one == "park":
            if standing is not None and standing.state in (State.PREPARED, State.COMMITTED):
                standing = MessageStatus(State.PARKED, standing.decision, standing.has_message)
            continue
        if one.startswith("asked"):
            if standing is None or standing.state is not State.PREPARED:
                continue
            step = settle(Decision.COMMITTED if one == "asked committed" else Decision.ROLLED_BACK)
        else:
            step = decide_step(standing, Event(one))
        assert step.incident is None or step.state is None
        if step.state is not None:
            had = standing is not None and standing.has_message
            decision = step.decision or (standing.decision if standing else None)
            standing = MessageStatus(step.state, decision, had or step.takes_message)
        if before is not None and standing is not None:
            assert before.decision in (None, standing.decision)
            assert before.state not in ENDED or before.state is standing.state
    assert not sent or (standing is not None and standing.decision is Decision.COMMITTED)


def test_every_message_that_is_sent_is_there() -> None:
    early = decide_step(None, Event.COMMITTED)
    assert early.state is State.COMMITTED
    joined = decide_step(MessageStatus(State.COMMITTED, Decision.COMMITTED, False), Event.PREPARED)
    assert joined.state is State.FORWARDED
    assert joined.takes_message


# Records of the look-back topic become rows, in any order and as often as they are read.


def _kinds(database: LookBackDatabase) -> list[str]:
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
    database: LookBackDatabase, settings: LookBackSettings, teller: Teller
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


# Look-back as Prometheus sees it: counted from 0, and no scrape waits for long.


def test_all_of_the_catalogue_is_there_from_the_start(teller: Teller) -> None:
    """A counter that begins at 1 is no increase to Prometheus."""
    teller.prepare("1")
    got = scrape_registry(Metrics(teller.database, ["payments"]).registry)
    for metric in CATALOGUE:
        found = got.find(metric.exported_name)
        assert found, metric
        for labels in found:
            assert {name for name, _ in labels} == set(metric.labels)
        if metric.type == "counter":
            assert set(found.values()) == {0.0}
    assert got.labels_of("backlog_lookback_incidents_total", "kind") == set(Incident)
    assert got.labels_of("backlog_lookback_checks_total", "service") == {"payments", "not listed"}
    assert got.labels_of("backlog_lookback_oldest_seconds", "state") == {"prepared"}
    assert got.value("backlog_lookback_messages", state="prepared") == 1
    assert got.value("backlog_lookback_messages", state="parked") == 0
    assert got.value("backlog_lookback_database_up") == 1


def test_a_database_that_hangs_holds_up_no_scrape(pg_database: LookBackDatabase) -> None:
    registry = Metrics(pg_database).registry
    with pg_database.write() as holder:
        holder.execute(text(f"LOCK TABLE {MESSAGES.name} IN ACCESS EXCLUSIVE MODE"))
        for _ in range(2):
            began = time.monotonic()
            got = scrape_registry(registry)
            assert time.monotonic() - began < 5
            assert got.value("backlog_lookback_database_up") == 0
            assert not got.find("backlog_lookback_messages")
            assert got.value("backlog_lookback_forwards_total", outcome="sent") == 0

    def is_up() -> bool:
        return scrape_registry(registry).value("backlog_lookback_database_up") == 1

    wait_until(is_up, what="the tables are seen again")


# What applications call, with either client.


@pytest.mark.parametrize("client", ["confluent", "kafka-python"])
def test_all_records_of_a_business_id_are_in_one_partition(
    kafka: EmbeddedKafka,
    topic: MakeTopic,
    client: str,
    kafka_python_producer: kafka_python.KafkaProducer,
) -> None:
    own = topic(8)
    producer = (
        Producer({"bootstrap.servers": kafka.bootstrap})
        if client == "confluent"
        else kafka_python_producer
    )
    sender = LookBackProducer(producer, "payments", topic=own)

    def work(biz_id: str) -> None:
        sender.prepare(
            "payment",
            biz_id,
            topic="out",
            key="k",
            value=None,
            headers={"type": b"\xff", "none": None},
        )
        sender.commit("payment", biz_id)

    run_together(*[partial(work, f"id-{n}") for n in range(8)])
    places: dict[bytes | None, list[tuple[int | None, Event]]] = {}
    for message in read_all({"bootstrap.servers": kafka.bootstrap}, own, range(8)):
        envelope = read_envelope(message.value())
        places.setdefault(message.key(), []).append((message.partition(), envelope.event))
        if isinstance(envelope, Prepared):
            assert (envelope.key, envelope.value) == (b"k", None)
            assert envelope.headers == (("type", b"\xff"), ("none", None))
    assert len(places) == 8
    for found in places.values():
        assert [event for _, event in found] == [Event.PREPARED, Event.COMMITTED]
        assert len({partition for partition, _ in found}) == 1


def test_what_cannot_be_sent_says_what_to_do() -> None:
    away = Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    sender = LookBackProducer(away, "payments", timeout=0.2)
    with pytest.raises(KafkaFailure, match="do not go on with the transaction"):
        sender.prepare("payment", "1", topic="out", value=b"v")
    with pytest.raises(KafkaFailure, match="nothing is lost"):
        sender.commit("payment", "1")
    for biz_id in ("", "x" * 256, "a\0b"):
        with pytest.raises(UsageError):
            sender.commit("payment", biz_id)
    with pytest.raises(UsageError):
        sender.prepare("payment", "1", topic="no/topic", value=b"v")
    for name in ("a\0b", "\ud800"):
        with pytest.raises(UsageError):
            sender.prepare("payment", "1", topic="out", value=b"v", headers={name: b"v"})


def test_an_envelope_may_have_fields_of_later() -> None:
    read = read_envelope(b'{"event":"committed","biz_type":"a","biz_id":"b","more":1}')
    assert read == Decided(event=Event.COMMITTED, biz_type="a", biz_id="b")


# Days made ahead, and what is old: archived, then dropped whole or deleted in batches.

_OLD = date(2020, 2, 29)


def _count(database: LookBackDatabase) -> int:
    with database.read() as connection:
        count: int = connection.execute(select(func.count()).select_from(MESSAGES)).scalar_one()
    return count


@pytest.fixture
def settings(tmp_path: Path) -> LookBackSettings:
    return make_settings(archive=tmp_path / "archive")


def test_fault_53_old_messages_are_archived_then_removed_in_bounds(
    teller: Teller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BATCH", 40)
    add_old(teller.database, 100, State.FORWARDED)
    teller.prepare("young")
    assert purge_old(teller.database, teller.settings) == 100
    assert _count(teller.database) == 1
    assert teller.settings.archive is not None
    files = sorted(teller.settings.archive.iterdir())
    assert len(files) == (3 if teller.database.is_sqlite else 1)
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert len({row["id"] for row in rows}) == 100
    assert (rows[0]["value"], rows[0]["headers"]) == (b"\x00v", '[["type",null]]')
    assert purge_old(teller.database, teller.settings) == 0


def test_what_has_not_ended_is_never_removed(teller: Teller) -> None:
    add_old(teller.database, 3, State.PARKED)
    purge_old(teller.database, teller.settings)
    assert _count(teller.database) == 3


def test_an_archive_that_cannot_be_written_deletes_nothing(
    database: LookBackDatabase, tmp_path: Path
) -> None:
    add_old(database, 3, State.ROLLED_BACK)
    (tmp_path / "file").write_text("")
    settings = make_settings(archive=tmp_path / "file")
    with pytest.raises(OSError, match="file"):
        purge_old(database, settings)
    assert _count(database) == 3


def test_days_are_made_ahead_and_by_any_number_of_instances(pg_database: LookBackDatabase) -> None:
    create_tables(pg_database)
    with pg_database.read() as connection:
        days = list_partitions(connection)
        today = pg_database.now(connection).date()
    assert {today + timedelta(days=ahead) for ahead in range(4)} <= set(days)


_CONFIG = """\
clusters: {main: {bootstrap.servers: "localhost:9092"}}
look_back:
  database: sqlite:///look-back.db
  cluster: main
  services: {payments: {http: "https://payments.example.com/look-back"}}
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "backlog.yaml").write_text(_CONFIG)
    return tmp_path


@pytest.fixture
def configured(place: Path) -> Teller:
    settings = Config.from_text(_CONFIG, place).look_back
    assert settings is not None
    database = LookBackDatabase(settings.reveal_url())
    create_tables(database)
    return Teller(database, settings.to_settings())


def _call(place: Path, *words: str, code: int = 0) -> Any:
    found, out, err = call_main(("lookback", *words, "--json"), place, {})
    assert found == code, err
    return json.loads(out)


def _show(place: Path, *words: str) -> str:
    found, out, err = call_main(("lookback", *words), place, {})
    assert found == 0, err
    return out


def test_parked_messages_are_seen_and_resumed(configured: Teller, place: Path) -> None:
    configured.prepare("1", value=b"secret of a customer")
    made = configured.find("1")["id"]
    _call(place, "park", made)
    configured.commit("1")
    states = {one["state"]: one["messages"] for one in _call(place, "status")["states"]}
    assert states == {"prepared": 0, "committed": 0, "forwarding": 0, "parked": 1}
    assert [one["id"] for one in _call(place, "list", "--state", "parked")["messages"]] == [made]
    shown = _call(place, "show", made)
    assert (shown["state"], shown["value_bytes"]) == ("parked", 20)
    assert [one["kind"] for one in shown["incidents"]] == ["commit_after_parking"]
    assert "secret" not in json.dumps(shown)
    for words in (("status",), ("list",), ("list", "--incidents"), ("show", made)):
        assert "secret" not in _show(place, *words)
    assert _call(place, "resume", "--all")["resumed"] == [made]
    assert configured.state("1") == "prepared"
    assert _call(place, "resume", made, code=5)["error"]["code"] == "refused"
    assert _call(place, "show", "nothing", code=2)["error"]["code"] == "usage"
    assert _call(place, "resume", code=2)["error"]["code"] == "usage"


def test_names_that_others_chose_are_escaped(configured: Teller, place: Path) -> None:
    configured.prepare("a\x1b[31mb", service="\u202eevil")
    shown = _show(place, "list")
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert r"\u202e" in shown


def test_without_tables_it_says_what_makes_them(place: Path) -> None:
    error = _call(place, "status", code=1)["error"]
    assert error["code"] == "look_back_database"
    assert "lookback run" in error["hint"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("cluster: main", "cluster: mian"), "look_back.cluster"),
        (("http:", "htpp:"), "the nearest known key is `http`"),
        (("https:", "ftp:"), "must be a URL"),
        (("https://", "https://user:${env:X}@"), "is not taken"),
        (('back"}', 'back", networks: [10.0.0.1/8]}'), "must be an address or a network"),
        (('back"}', 'back", grpc: "a:1"}'), "only one of them"),
        (('http: "https', 'token: "${env:X}", http: "http'), "needs TLS"),
        (("sqlite:///look-back.db", "mysql://db/x"), "not supported"),
    ],
)
def test_what_is_configured_wrongly_is_said_by_its_key(change: tuple[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Config.from_text(_CONFIG.replace(*change), env={"X": "hidden-value"})
    assert said in str(caught.value)
    assert "hidden-value" not in str(caught.value)


def test_fault_59_its_secrets_are_masked() -> None:
    text = _CONFIG.replace("sqlite:///look-back.db", "postgresql://u:${env:PASSWORD}@db/x")
    text = text.replace('back"}', 'back", token: "${env:TOKEN}"}')
    config = Config.from_text(text, env={"PASSWORD": "pass-word", "TOKEN": "to-ken"})
    shown = f"{config!r} {config.model_dump()}"
    assert "pass-word" not in shown
    assert "to-ken" not in shown
    assert config.mask_secrets("a pass-word and a to-ken") == "a *** and a ***"
