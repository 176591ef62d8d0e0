"""Outboxes of other projects, in their own tables: what `init` writes makes what they send.

Tables are as the projects make them, rows and messages as their code writes them (`outboxes.yaml`
names the versions); the projects themselves do not run here.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest
import yaml

from backlogctl.config import Stream, load_config
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill.sources.outboxes import list_known
from backlogctl_delivery.outbox import create_tables
from tests.conftest import MakeTopic
from tests.kit.kafka import set_config
from tests.kit.shop import call_main
from tests.spark_backfill import world
from tests.spark_backfill.reading import read_messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Sent = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]
AT = "'2026-11-20 12:00:00'"
IDS = [f"a0eebc99-9c0b-4ef8-bb6d-6bb9bd38000{number}" for number in range(9)]


@dataclass(frozen=True)
class Preset:
    """A table by kind of database, its rows, and what is sent of those of the topic.

    `fill` is what a person puts for each FILL_IN of a source that is written as a comment.
    """

    table: str
    create: Mapping[str, str]
    rows: Sequence[str]
    topic: str = ""
    sent: Sequence[Sent] = ()
    fill: Sequence[str] = ()

    def make(self, url: str, rows: Sequence[str] | None = None) -> None:
        """Makes the table, with its rows or others."""
        kind = "postgresql" if url.startswith("postgresql") else "mariadb"
        name = self.table if kind == "postgresql" else f"`{self.table}`"
        rows = self.rows if rows is None else rows
        filled = [f"INSERT INTO {name} VALUES ({row})" for row in rows]
        world.run_sql(url, *self.create[kind].split(";"), *filled)


# Quarkus' entity, as Hibernate makes it.
DEBEZIUM = Preset(
    "outboxevent",
    {
        "postgresql": "CREATE TABLE outboxevent (id uuid NOT NULL, aggregatetype varchar(255) NOT NULL, "
        "aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, "
        "timestamp timestamp(6) with time zone NOT NULL, payload jsonb, "
        "tracingspancontext varchar(256), PRIMARY KEY (id))",
        "mariadb": "CREATE TABLE outboxevent (id uuid NOT NULL, aggregatetype varchar(255) NOT NULL, "
        "aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, "
        "timestamp datetime(6) NOT NULL, payload varchar(8000), "
        "tracingspancontext varchar(256), PRIMARY KEY (id)) ENGINE=InnoDB",
    },
    [
        f"""'{IDS[1]}', 'Order', '7', 'Paid', {AT}, '{{"by": "J \\"é\\" x", "id": 7}}', NULL""",
        f"'{IDS[2]}', 'Order', '8', 'Gone', {AT}, NULL, NULL",
        f"'{IDS[3]}', 'Customer', '7', 'Made', {AT}, '{{}}', NULL",
        f"'{IDS[4]}', 'no topic!', '7', 'Made', {AT}, '{{}}', NULL",
    ],
    "outbox.event.Order",
    [
        (b"7", '{"by": "J \\"é\\" x", "id": 7}'.encode(), [("id", IDS[1].encode())]),
        (b"8", None, [("id", IDS[2].encode())]),
    ],
)

CAP_HEADERS = (
    '"cap-callback-name":null,"cap-msg-id":"%d","cap-corr-id":"%d","cap-corr-seq":"0",'
    '"cap-msg-name":"orders.paid","cap-msg-type":"Order","cap-senttime":"11/20/2026 12:00:00"'
)


def write_cap(number: int, value: str, more: str = "") -> str:
    """What CAP's JsonUtf8Serializer writes of a message."""
    return f'{{"Headers":{{{more}{CAP_HEADERS % (number, number)}}},"Value":{value}}}'


def list_cap(number: int) -> list[tuple[str, bytes | None]]:
    found = json.loads("{" + CAP_HEADERS % (number, number) + "}")
    return [(name, value if value is None else value.encode()) for name, value in found.items()]


CAP_VALUE = '{"Id":1,"Name":"caf\\u00E9 \\u0022},\\u0022Value\\u0022:\\u0027"}'
CAP = Preset(
    "cap.published",
    {
        "postgresql": 'CREATE SCHEMA IF NOT EXISTS "cap";'
        'CREATE TABLE IF NOT EXISTS "cap"."published"("Id" BIGINT PRIMARY KEY NOT NULL,'
        '"Version" VARCHAR(20) NOT NULL,"Name" VARCHAR(200) NOT NULL,"Content" TEXT NULL,'
        '"Retries" INT NOT NULL,"Added" TIMESTAMP NOT NULL,"ExpiresAt" TIMESTAMP NULL,'
        '"StatusName" VARCHAR(50) NOT NULL)',
        "mariadb": "CREATE TABLE IF NOT EXISTS `cap.published` (`Id` bigint NOT NULL,"
        "`Version` varchar(20) DEFAULT NULL,`Name` varchar(200) NOT NULL,`Content` longtext,"
        "`Retries` int(11) DEFAULT NULL,`Added` datetime NOT NULL,`ExpiresAt` datetime DEFAULT NULL,"
        "`StatusName` varchar(40) NOT NULL,PRIMARY KEY (`Id`)) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4",
    },
    [
        f"1, 'v1', 'orders.paid', '{write_cap(1, CAP_VALUE)}', 0, {AT}, NULL, 'Succeeded'",
        "2, 'v1', 'orders.paid', '"
        + write_cap(2, '"text"', '"cap-kafka-key":"k7","x":"\\u0022},\\u0022Value\\u0022:1",')
        + f"', 0, {AT}, NULL, 'Succeeded'",
        f"3, 'v1', 'orders.paid', '{write_cap(3, 'null')}', 0, {AT}, NULL, 'Succeeded'",
        f"4, 'v1', 'orders.paid', '{write_cap(4, '4')}', 3, {AT}, NULL, 'Failed'",
        f"5, 'v1', 'orders.made', '{write_cap(5, '5')}', 0, {AT}, NULL, 'Succeeded'",
    ],
    "orders.paid",
    [
        (b"1", CAP_VALUE.encode(), list_cap(1)),
        (b"k7", b'"text"', [("cap-kafka-key", b"k7"), ("x", b'"},"Value":1'), *list_cap(2)]),
        (b"3", b"", list_cap(3)),
    ],
)

EVENT = '{"eventId":"e1","orderId":"7","by":"Jé"}'
LISTENER = "org.springframework.modulith.events.support.EventExternalizerModuleListener.externalize"
MODULITH = Preset(
    "event_publication",
    {
        "postgresql": "CREATE TABLE IF NOT EXISTS event_publication (id UUID NOT NULL, "
        "listener_id TEXT NOT NULL, event_type TEXT NOT NULL, serialized_event TEXT NOT NULL, "
        "publication_date TIMESTAMP WITH TIME ZONE NOT NULL, "
        "completion_date TIMESTAMP WITH TIME ZONE, status TEXT, completion_attempts INT, "
        "last_resubmission_date TIMESTAMP WITH TIME ZONE, PRIMARY KEY (id))",
        "mariadb": "CREATE TABLE IF NOT EXISTS event_publication (ID VARCHAR(36) NOT NULL, "
        "LISTENER_ID VARCHAR(512) NOT NULL, EVENT_TYPE VARCHAR(512) NOT NULL, "
        "SERIALIZED_EVENT VARCHAR(4000) NOT NULL, PUBLICATION_DATE TIMESTAMP(6) NOT NULL, "
        "COMPLETION_DATE TIMESTAMP(6) DEFAULT NULL NULL, PRIMARY KEY (ID), "
        "INDEX EVENT_PUBLICATION_BY_COMPLETION_DATE_IDX (COMPLETION_DATE))",
    },
    [],
    "orders",
    [
        (
            b"7",
            EVENT.encode(),
            [
                ("__TypeId__", b"shop.OrderPaid"),
                ("eventId", b"e1"),
                ("spring_json_header_types", b'{"eventId":"java.lang.String"}'),
            ],
        )
    ],
    ["shop.OrderPaid", LISTENER, "orderId", *["eventId"] * 5],
)

NAMASTACK_COLUMNS = (
    "id VARCHAR(255) NOT NULL, status VARCHAR(20) NOT NULL, record_key VARCHAR(255) NOT NULL, "
    "record_type VARCHAR(255) NOT NULL, payload {text} NOT NULL, context {text}, "
    "created_at {time} NOT NULL, completed_at {time} NULL, failure_count INT NOT NULL, "
    "failure_reason VARCHAR(1000), next_retry_at {time} NOT NULL, partition_no INTEGER NOT NULL, "
    "handler_id VARCHAR(1000) NOT NULL, PRIMARY KEY (id)"
)
HANDLER = "io.namastack.outbox.kafka.KafkaOutboxHandler#handle(java.lang.Object,Metadata)"


def name_namastack(text: str, time: str) -> str:
    columns = NAMASTACK_COLUMNS.format(text=text, time=time)
    return f"CREATE TABLE IF NOT EXISTS outbox_record ({columns})"


def write_namastack(number: int, status: str, done: str) -> str:
    return (
        f"'{number}', '{status}', '7', 'shop.OrderPaid', '{EVENT}', NULL, {AT}, {done}, 0, NULL, "
        f"{AT}, 3, '{HANDLER}'"
    )


NAMASTACK = Preset(
    "outbox_record",
    {
        "postgresql": name_namastack("TEXT", "TIMESTAMP WITH TIME ZONE"),
        "mariadb": name_namastack("LONGTEXT CHARACTER SET utf8mb4", "TIMESTAMP"),
    },
    [write_namastack(1, "COMPLETED", AT), write_namastack(2, "NEW", "NULL")],
    "orders",
    [(b"7", EVENT.encode(), [("eventId", b"e1"), ("__TypeId__", b"shop.OrderPaid")])],
    ["shop.OrderPaid", f'"{HANDLER}"', *["eventId"] * 4],
)
PRESETS = {"debezium": DEBEZIUM, "cap": CAP, "modulith": MODULITH, "namastack": NAMASTACK}

# Entities of MassTransit by Npgsql; TXNO_OUTBOX after all of its migrations.
LEAVE_NOTHING = {
    "OutboxMessage": 'CREATE TABLE "OutboxMessage" ("SequenceNumber" bigint GENERATED BY DEFAULT AS '
    'IDENTITY PRIMARY KEY, "EnqueueTime" timestamptz, "SentTime" timestamptz NOT NULL, '
    '"Headers" text, "Properties" text, "InboxMessageId" uuid, "InboxConsumerId" uuid, '
    '"OutboxId" uuid, "MessageId" uuid NOT NULL, "ContentType" varchar(256) NOT NULL, '
    '"MessageType" text NOT NULL, "Body" text NOT NULL, "ConversationId" uuid, "CorrelationId" uuid, '
    '"InitiatorId" uuid, "RequestId" uuid, "SourceAddress" varchar(256), '
    '"DestinationAddress" varchar(256), "ResponseAddress" varchar(256), "FaultAddress" varchar(256), '
    '"ExpirationTime" timestamptz)',
    "txno_outbox": "CREATE TABLE TXNO_OUTBOX (id VARCHAR(36) PRIMARY KEY, invocation TEXT, "
    "nextAttemptTime TIMESTAMP(6), attempts INT, blocked BOOLEAN, version INT, "
    "uniqueRequestId VARCHAR(250) NULL UNIQUE, processed BOOLEAN, lastAttemptTime TIMESTAMP(6), "
    "topic VARCHAR(250) NOT NULL DEFAULT '*', seq BIGINT NULL)",
}


@pytest.fixture(params=["postgresql", "mariadb"])
def url(request: pytest.FixtureRequest) -> str:
    fixture = "pg_url" if request.param == "postgresql" else "mariadb_url"
    return str(request.getfixturevalue(fixture))


def init(url: str, folder: Path, code: int = 0) -> tuple[str, dict[str, Any]]:
    """The file that is written, and the document."""
    found, out, err = call_main(("--json", "init", "--force", "--database", url), folder, {})
    assert found == code, (out, err)
    file = folder / "backlog.yaml"
    return (file.read_text() if file.exists() else ""), json.loads(out)


def read_stream(folder: Path, preset: Preset) -> Stream:
    """The stream of the file, its source filled in where that is a comment."""
    file = folder / "backlog.yaml"
    if preset.fill:
        text = file.read_text()
        lines = text.partition("\n#     source:\n")[2].splitlines()
        count = next(i for i, line in enumerate(lines) if not line.startswith("#       "))
        source = "\n".join(line.removeprefix("# ") for line in lines[:count])
        for value in preset.fill:
            source = source.replace("FILL_IN", value, 1)
        assert "FILL_IN" not in source
        stream = {"cluster": "main", "topic": preset.topic, "group": "readers"}
        streams = {preset.topic: {**stream, "source": yaml.safe_load(source)}}
        file.write_text(
            yaml.safe_dump({**yaml.safe_load(text), "streams": streams}, sort_keys=False)
        )
    return load_config(file).streams[preset.topic]


def read_sent(spark: SparkSession, url: str, stream: Stream) -> list[Sent]:
    """What is made of the rows, in the order of their ids."""
    assert stream.source is not None
    sent: list[Sent] = []
    for made in read_messages(spark, url, stream):
        if stream.source.sent_time and made["time"] is None:
            continue  # it is not marked as sent
        assert made["reason"] is None
        headers = [(one["name"], one["value"]) for one in made.get("header_list", ())]
        headers += zip(stream.source.message.headers, made["header_values"], strict=True)
        told = [(name, None if value is None else bytes(value)) for name, value in headers]
        key, value = (None if made[at] is None else bytes(made[at]) for at in ("key", "value"))
        sent.append((key, value, told))
    return sent


def list_rows(preset: Preset, url: str) -> Sequence[str]:
    """Those of Modulith have one column less in its older schema, which MariaDB has here."""
    if preset is not MODULITH:
        return preset.rows
    more = ", 'COMPLETED', 1, NULL" if url.startswith("postgresql") else ""
    none = ", 'PUBLISHED', 1, NULL" if url.startswith("postgresql") else ""
    event = f"'{LISTENER}', 'shop.OrderPaid', '{EVENT}', {AT}"
    return [
        f"'{IDS[1]}', {event}, {AT}{more}",
        f"'{IDS[2]}', {event}, NULL{none}",
        f"'{IDS[3]}', 'shop.Mailer.on', 'shop.OrderPaid', '{EVENT}', {AT}, {AT}{more}",
    ]


@pytest.mark.parametrize("name", PRESETS)
def test_rows_become_what_was_sent(
    spark: SparkSession, url: str, tmp_path: Path, name: str
) -> None:
    preset = PRESETS[name]
    preset.make(url, list_rows(preset, url))
    text, document = init(url, tmp_path)
    (found,) = document["outboxes"]
    assert found["table"] == preset.table
    assert (preset.topic in found["topics"]) != bool(preset.fill)
    for check in found["check"]:
        assert check in re.sub(r"[\s#]+", " ", text)
    stream = read_stream(tmp_path, preset)
    sent = read_sent(spark, url, stream)
    assert sent == list(preset.sent)


@pytest.mark.parametrize("at", [0, 1], ids=["JsonConverter", "expand.json.payload"])
def test_what_the_comments_of_debezium_say_for_other_converters(
    spark: SparkSession, pg_url: str, tmp_path: Path, at: int
) -> None:
    DEBEZIUM.make(pg_url, [DEBEZIUM.rows[0]])
    text, _ = init(pg_url, tmp_path)
    sql = re.findall(r"#   sql: (.*?)(?: {2,}#.*)?$", text, re.M)[at]
    changed = text.replace("value: {column: payload}", f"value:\n          sql: {sql}")
    (tmp_path / "backlog.yaml").write_text(changed)
    ((_, value, _),) = read_sent(spark, pg_url, read_stream(tmp_path, DEBEZIUM))
    plain = DEBEZIUM.sent[0][1] or b""
    compact = json.dumps(json.loads(plain), ensure_ascii=False, separators=(",", ":"))
    assert (value or b"").decode() == [json.dumps(plain.decode(), ensure_ascii=False), compact][at]


def test_a_table_without_a_time_is_told_and_written_once_it_has_one(
    pg_url: str, tmp_path: Path
) -> None:
    """The columns that Debezium's manual names; in a schema of its own."""
    world.run_sql(
        pg_url,
        "CREATE SCHEMA shop",
        "CREATE TABLE shop.outbox (id uuid not null constraint outbox_pk primary key, "
        "aggregatetype varchar(255) not null, aggregateid varchar(255) not null, "
        "type varchar(255) not null, payload jsonb)",
        f"INSERT INTO shop.outbox VALUES ('{IDS[1]}', 'Order', '7', 'Paid', '{{}}')",
    )
    text, document = init(pg_url, tmp_path)
    (found,) = document["outboxes"]
    assert found["topics"] == []
    assert "no column that alone is a time" in found["check"][0]
    assert "time_column: FILL_IN" in text
    assert load_config(tmp_path / "backlog.yaml").streams == {}
    world.run_sql(
        pg_url, "ALTER TABLE shop.outbox ADD created_at timestamptz NOT NULL DEFAULT now()"
    )
    init(pg_url, tmp_path)
    source = load_config(tmp_path / "backlog.yaml").streams["outbox.event.Order"].source
    assert source is not None
    assert (source.table, source.time_column) == ("shop.outbox", "created_at")


def test_our_own_outbox_needs_no_more_than_its_name(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    engine = world.open_database(url)
    with engine.begin() as connection:
        create_tables(connection)
    engine.dispose()
    world.run_sql(
        url,
        "INSERT INTO backlog_outbox (message_id, topic, state, attempts, max_attempts, interval_ms, "
        "created_at) VALUES ('m1', 'orders', 'sent', 1, 9, 1, 1)",
    )
    text, document = init(url, tmp_path)
    assert document["outboxes"][0]["topics"] == ["orders"]
    assert "outbox: shop\n" in text
    source = load_config(tmp_path / "backlog.yaml").streams["orders"].source
    assert source is not None
    assert source.where == {"topic": "orders", "state": "sent"}


def test_of_what_leaves_nothing_no_source_is_written(pg_url: str, tmp_path: Path) -> None:
    world.run_sql(pg_url, *LEAVE_NOTHING.values())
    DEBEZIUM.make(pg_url, [])  # each row is deleted as it is written
    text, document = init(pg_url, tmp_path)
    found = {one["table"]: one for one in document["outboxes"]}
    assert found.keys() == {*LEAVE_NOTHING, DEBEZIUM.table}
    for table, one in found.items():
        assert one["topics"] == []
        told = f"the table {table}: no message can be rebuilt from it, since {one['why_not']}"
        assert told in re.sub(r"[\s#]+", " ", text)
    assert "no rows now" in found[DEBEZIUM.table]["why_not"]
    assert "source:\n#       database" not in text
    assert load_config(tmp_path / "backlog.yaml").streams == {}


def test_a_table_with_similar_columns_is_none(pg_url: str, tmp_path: Path) -> None:
    """One column of another name, or CAP's table of what it received."""
    for number, known in enumerate(list_known()):
        for at, column in enumerate(sorted(known.columns - {"id", "version"})):
            names = [f'"{name}"' for name in known.columns if name != column]
            names.append(f'"x_{column}"')
            world.run_sql(
                pg_url, f"CREATE TABLE t{number}_{at} ({', '.join(f'{n} text' for n in names)})"
            )
    received = ", ".join(f'"{name}" text' for name in (*CAP_NAMES, "Group"))
    world.run_sql(pg_url, f"CREATE TABLE received ({received})")
    text, document = init(pg_url, tmp_path, 5)
    assert text == ""
    assert "no table has the columns" in document["error"]["message"]


CAP_NAMES = ("Id", "Version", "Name", "Content", "Retries", "Added", "ExpiresAt", "StatusName")


def write_debezium(place: str, number: int) -> tuple[str, world.Published]:
    """A row, and the message that is sent of it."""
    at = world.START + timedelta(seconds=number)
    key, value, event_id = str(number % 20), f'{{"n": {number}}}', f"{IDS[0][:-3]}{number:03d}"
    row = f"'{event_id}', '{place}', '{key}', 'Paid', '{at:%F %T}', '{value}', NULL"
    home, headers = world.place_key(key.encode(), 3), (("id", event_id.encode()),)
    return row, world.Published(key.encode(), value.encode(), home, headers, at)


def write_published(place: str, number: int) -> tuple[str, world.Published]:
    """The same of CAP."""
    at = world.START + timedelta(seconds=number)
    key, value = str(number).encode(), f'{{"n":{number}}}'
    content = write_cap(number, value)
    row = f"{number}, 'v1', '{place}', '{content}', 0, '{at:%F %T}', NULL, 'Succeeded'"
    headers = tuple(list_cap(number))
    return row, world.Published(key, value.encode(), crc32(key) % 3, headers, at)


@pytest.mark.parametrize(
    ("preset", "write"),
    [(DEBEZIUM, write_debezium), (CAP, write_published)],
    ids=["debezium", "cap"],
)
def test_a_plan_puts_back_the_very_messages(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: MakeTopic,
    pg_url: str,
    tmp_path: Path,
    preset: Preset,
    write: Callable[[str, int], tuple[str, world.Published]],
) -> None:
    place = topic(partitions=3)
    made = [write(place, number) for number in range(1, 301)]
    messages = [message for _, message in made]
    preset.make(pg_url, [row for row, _ in made])
    init(pg_url, tmp_path)
    (stream,) = load_config(tmp_path / "backlog.yaml").streams.values()
    # The test has its topic's name; Debezium puts outbox.event. before what the row says.
    assert stream.topic.removeprefix("outbox.event.") == place
    stream = stream.model_copy(update={"topic": place})
    assert stream.source is not None

    set_config({"bootstrap.servers": kafka.bootstrap}, place, {"retention.ms": "-1"})
    world.publish(kafka.bootstrap, place, messages)
    gone = Counter(message.partition for message in messages[:100])
    world.delete_below(kafka.bootstrap, place, gone)
    last = messages[99].time
    request = world.make_request(
        kafka.bootstrap,
        stream,
        pg_url,
        tuple(world.make_gap(place, p, 0, count, last=last) for p, count in gone.items()),
        tmp_path / "staging",
        sources={stream.source.database: world.make_source(pg_url)},
    )
    outcome = world.plan(spark, request)
    assert outcome.counts.rebuilt == outcome.counts.expected == 100
    assert (outcome.proof.rate, outcome.proof.compared) == (1.0, 200)
    for number, count in gone.items():
        staged = [m for m in world.read_staged(request).to_pylist() if m["partition"] == number]
        lost = [message for message in messages if message.partition == number][:count]
        assert [(m["key"], m["value"]) for m in staged] == [(m.key, m.value) for m in lost]
        for one, message in zip(staged, lost, strict=True):
            headers = [(header["name"], header["value"]) for header in one["headers"]]
            assert headers[: len(message.headers)] == list(message.headers)
