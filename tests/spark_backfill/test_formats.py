"""Plans of streams whose values or keys have a schema: real producers, registry, broker, Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from backlogctl.config import SchemaRegistry
from backlogctl.errors import ConfigurationError, Refused
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.schemas.codecs import open_codec, prepare_schema
from backlogctl.schemas.frames import Frame
from backlogctl.schemas.registry import WriterSchema
from backlogctl.spark_backfill.messages.encoding import Encoder, choose_encoders
from backlogctl.values import OffsetRange
from tests.conftest import MakeTopic
from tests.kit.kafka import set_config
from tests.kit.registry import EmbeddedRegistry, counting_writes
from tests.spark_backfill import world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AMOUNT = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "order_id", "type": "long"},
        {"name": "user_id", "type": ["null", "int"], "default": None},
        {"name": "status", "type": "string"},
        {"name": "amount", "type": AMOUNT},
        {"name": "updated_at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}
# A field more, with a default: what a producer's next release has.
NEWER = {**AVRO, "fields": [*AVRO["fields"], {"name": "source", "type": "string", "default": "x"}]}
PROTOBUF = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Order {
  int64 order_id = 1; optional int32 user_id = 2; string status = 3; string amount = 4;
  google.protobuf.Timestamp updated_at = 5;
}
"""
HANDLED = {"database": "shop", "table": "processed", "column": "order_id"}
JSON = {"type": "object", "required": ["order_id"], "properties": {"status": {"type": "string"}}}
Encode = Callable[[Mapping[str, Any]], bytes]


@dataclass
class Producer:
    """What writes orders with a schema; it keeps what it wrote, by order."""

    registry: EmbeddedRegistry
    topic: str
    kind: str = "avro"
    wrote: dict[int, bytes] = field(default_factory=dict)

    def register(self, text: str, version: str = "value") -> int:
        """The schema's number."""
        client = SchemaRegistryClient({"url": self.registry.url})
        kind = {"avro": "AVRO", "protobuf": "PROTOBUF", "json_schema": "JSON"}[self.kind]
        return client.register_schema(f"{self.topic}-{version}", Schema(text, kind))

    def open(self, schema: Any = None) -> Encode:
        """Encodes orders as the producer does."""
        client = SchemaRegistryClient({"url": self.registry.url})
        context = SerializationContext(self.topic, MessageField.VALUE)
        conf: dict[str, Any] = {"auto.register.schemas": False}
        if self.kind == "protobuf":
            write = self._open_protobuf()
        elif self.kind == "avro":
            text = json.dumps(schema or AVRO)
            self.register(text)
            avro: Any = AvroSerializer(client, text, conf=conf)

            def write(row: Mapping[str, Any]) -> bytes:
                made: bytes = avro({**row, "amount": Decimal(row["amount"])}, context)
                return made
        else:
            self.register(json.dumps(JSON))
            plain: Any = JSONSerializer(json.dumps(JSON), client, conf=conf)

            def write(row: Mapping[str, Any]) -> bytes:
                at = row["updated_at"].astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
                made: bytes = plain({**row, "updated_at": at}, context)
                return made

        def encode(row: Mapping[str, Any]) -> bytes:
            self.wrote[row["order_id"]] = made = write(row)
            return made

        return encode

    def _open_protobuf(self) -> Encode:
        number = self.register(PROTOBUF)
        codec: Any = open_codec(prepare_schema(WriterSchema("protobuf", PROTOBUF)))

        def write(row: Mapping[str, Any]) -> bytes:
            message = codec._class()
            message.order_id, message.status = row["order_id"], row["status"]
            message.amount = row["amount"]
            if row["user_id"] is not None:
                message.user_id = row["user_id"]
            message.updated_at.FromDatetime(row["updated_at"])
            return Frame(number, (0,)).wrap(message.SerializeToString())

        return write


@dataclass
class Case:
    """A table whose orders a producer sent, the first ones gone; a plan is one call."""

    spark: SparkSession
    bootstrap: str
    url: str
    registry: EmbeddedRegistry
    producer: Producer
    staging: Path
    lost: world.Lost | None = None
    gaps: tuple[Any, ...] = ()

    def lose(
        self,
        total: int,
        lost: int,
        *,
        change: int | Callable[[int], bool] | None = None,
        encode: Encode | None = None,
    ) -> None:
        """Orders of which the first are gone; from number `change` on with the newer schema."""
        rows = [world.make_order(number) for number in range(1, total + 1)]
        world.fill_table(self.url, world.ORDERS, rows)
        # Nobody handled anything: where the loss begins is known.
        world.run_sql(self.url, "CREATE TABLE processed (order_id varchar(40) PRIMARY KEY)")
        old = self.producer.open() if encode is None else encode
        encode = old
        if change is not None:
            new = self.producer.open(NEWER)
            is_new = change if callable(change) else change.__le__
            encode = lambda row: (new if is_new(row["order_id"]) else old)(row)  # noqa: E731
        self.lost = world.lose_orders(
            self.bootstrap, self.producer.topic, rows, lost, encode=encode
        )
        self.gaps = self.lost.gaps

    def request(self, *, url: str | None = None, message: Any = None, **said: Any) -> Any:
        """The plan's request; `said` is of the format."""
        encoded = {"columns": world.FIELDS, "registry": "main", **said}
        stream = world.make_stream(
            self.producer.topic,
            mutable=False,
            message={
                "key": "order_id",
                "value": {self.producer.kind: encoded},
                **(message or {}),
            },
            **({"consumed": HANDLED} if self.lost else {}),
        )
        return world.make_request(
            self.bootstrap,
            stream,
            self.url,
            self.gaps,
            self.staging,
            registries={"main": SchemaRegistry(url=url or self.registry.url)},
        )

    def plan(self, **said: Any) -> Any:
        """The outcome."""
        return world.plan(self.spark, self.request(**said))

    def read_staged(self) -> dict[int, bytes]:
        """Values by order."""
        staged = world.read_staged(self.request())
        return {int(m["key"]): m["value"] for m in staged.to_pylist()}


@pytest.fixture
def case(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: MakeTopic,
    shop: str,
    registry: EmbeddedRegistry,
    tmp_path: Path,
) -> Case:
    producer = Producer(registry, topic(partitions=3))
    return Case(spark, kafka.bootstrap, shop, registry, producer, tmp_path / "staging")


@pytest.fixture
def case_of_each(case: Case, url: str) -> Case:
    """The same with a database of each kind."""
    return replace(case, url=url)


@pytest.mark.parametrize("kind", ["avro", "protobuf", "json_schema"])
def test_lost_messages_are_made_as_their_producer_wrote_them(case_of_each: Case, kind: str) -> None:
    case = case_of_each
    case.producer.kind = kind
    case.lose(450, 200)
    with counting_writes(case.registry.url) as (address, writes):
        outcome = case.plan(url=address)
        assert writes == []
    assert outcome.proof.differences == ()
    assert (outcome.proof.rate, outcome.proof.compared) == (1.0, 200)
    assert (outcome.verdict, outcome.reasons) == ("exact", ())
    assert case.read_staged() == {n: case.producer.wrote[n] for n in range(1, 201)}


def test_fault_186_a_schema_that_may_have_changed_is_said(case: Case) -> None:
    """All that survives has the newer schema: which one the first lost ones had nobody knows."""
    case.lose(450, 200, change=150)
    outcome = case.plan()
    assert outcome.verdict == "short"
    assert len(outcome.reasons) == 1
    assert f"{case.producer.topic}-value has older schemas" in outcome.reasons[0]
    assert outcome.proof.rate == 1.0
    staged = case.read_staged()
    assert staged == {n: case.producer.wrote[n] if n >= 150 else staged[n] for n in range(1, 201)}
    assert all(len(staged[n]) == len(case.producer.wrote[n]) + 2 for n in range(1, 150))


def test_survivors_are_proved_by_the_schema_of_each(case: Case) -> None:
    """The schema changed after the loss: beside it the old one stands on both sides."""
    case.lose(450, 200, change=300)
    outcome = case.plan()
    assert outcome.proof.differences == ()
    assert outcome.proof.rate == 1.0
    assert outcome.verdict == "exact"
    assert case.read_staged() == {n: case.producer.wrote[n] for n in range(1, 201)}


def test_fault_186_schemas_that_are_written_side_by_side_are_said(case: Case) -> None:
    """While a release is rolled out: beside the loss stands one, and in it there were both."""
    case.lose(450, 200, change=lambda number: number % 7 == 0 and not 200 < number < 230)
    outcome = case.plan()
    assert outcome.verdict == "short"
    (reason,) = outcome.reasons
    assert "producers with several schemas write at the same time" in reason
    assert outcome.proof.rate == 1.0


def test_fault_186_neighbours_of_different_schemas_need_a_word(case: Case) -> None:
    case.lose(450, 0, change=250)
    case.gaps = tuple(world.make_gap(case.producer.topic, p, 60, 100) for p in range(3))
    with pytest.raises(Refused, match="the schema changed around the loss") as refused:
        case.plan()
    number = int(refused.value.hint.partition("schema_id: ")[2].partition("`")[0])
    outcome = case.plan(schema_id=number)
    assert outcome.verdict == "short"
    assert any("is said by the configuration" in reason for reason in outcome.reasons)


def choose(case: Case, frames: Sequence[Frame], *lost: tuple[int, int]) -> Encoder:
    """The encoder of losses in a partition that has messages with these frames."""
    body = open_codec(prepare_schema(WriterSchema("protobuf", TWO)), indexes=(0,)).encode({"a": 1})
    messages = [world.Published(b"k", frame.wrap(body), 0) for frame in frames]
    world.publish(case.bootstrap, case.producer.topic, messages)
    ranges = [OffsetRange(0, start, end) for start, end in lost]
    request = case.request(message={"key": "order_id"}, columns=["a"])
    properties = {"bootstrap.servers": case.bootstrap}
    return choose_encoders(request.stream, request.registries, properties, ranges)["value"]


TWO = 'syntax = "proto3"; message A { int32 a = 1; } message B { int32 a = 1; }'


def test_fault_186_messages_beside_the_loss_of_two_types_are_refused(case: Case) -> None:
    case.producer.kind = "protobuf"
    number = case.producer.register(TWO)
    first, second = Frame(number, (0,)), Frame(number, (1,))
    with pytest.raises(Refused, match=r"several ways: schema \d+ and schema \d+, message \[1\]"):
        choose(case, [first] * 5 + [second] * 5, (2, 6))


def test_fault_186_nothing_behind_the_loss_is_said(case: Case) -> None:
    case.producer.kind = "protobuf"
    frame = Frame(case.producer.register(TWO), (0,))
    assert choose(case, [frame] * 10, (2, 6)).unsure == ""
    assert "no value behind the loss survives" in choose(case, [], (2, 6), (8, 10)).unsure


def test_a_row_that_does_not_fit_is_in_quarantine_with_the_field(case: Case) -> None:
    case.lose(450, 200)
    world.run_sql(case.url, "UPDATE orders SET status = NULL WHERE order_id IN (7, 9)")
    outcome = case.plan()
    assert outcome.quarantine.reasons == {
        "value: field status: is NULL, and the schema takes none": 2
    }


@pytest.mark.parametrize(
    ("said", "told"),
    [
        pytest.param(
            {"columns": world.FIELDS[:3]}, "requires the field amount, and no column", id="lacking"
        ),
        pytest.param({"columns": ["order_id", "gone"]}, "gone", id="no column"),
        pytest.param({"schema_id": 999_999}, "could not read schema 999999", id="no schema"),
    ],
)
def test_what_cannot_be_is_refused_before_a_row_is_read(
    case: Case, said: Mapping[str, Any], told: str
) -> None:
    case.lose(30, 10)
    with pytest.raises((ConfigurationError, Exception), match=told):
        case.plan(**said)


def test_differences_are_told_by_field(case: Case) -> None:
    case.lose(450, 200)
    sql = (
        "named_struct('order_id', order_id, 'user_id', user_id, 'status', upper(status), "
        "'amount', amount, 'updated_at', updated_at)"
    )
    with pytest.raises(Refused, match=r'status is "(paid .*|new)" in the log, "[PN]'):
        case.plan(columns=None, sql=sql)
    outcome = case.plan(columns=None, sql=sql, message={"ignore_fields": ["status"]})
    assert outcome.proof.rate == 1.0


NESTED = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Nested {
  message Buyer { string name = 1; optional int32 age = 2; }
  int64 id = 1; Buyer buyer = 2; repeated string lines = 3; google.protobuf.Timestamp at = 4;
}
"""


def test_records_in_records_and_lists_are_made_by_sql(case: Case) -> None:
    number = SchemaRegistryClient({"url": case.registry.url}).register_schema(
        f"{case.producer.topic}-value", Schema(NESTED, "PROTOBUF")
    )
    codec: Any = open_codec(prepare_schema(WriterSchema("protobuf", NESTED)))

    def encode(row: Mapping[str, Any]) -> bytes:
        message = codec._class(id=row["order_id"], lines=str(row["amount"]).split("."))
        message.buyer.name = row["status"]
        if row["user_id"] is not None:
            message.buyer.age = row["user_id"]
        message.at.FromDatetime(row["updated_at"])
        case.producer.wrote[row["order_id"]] = made = Frame(number, (0,)).wrap(
            message.SerializeToString()
        )
        return made

    case.producer.kind = "protobuf"
    case.lose(450, 200, encode=encode)
    sql = (
        "named_struct('id', order_id, 'buyer', named_struct('name', status, 'age', user_id), "
        "'lines', split(amount, '[.]'), 'at', updated_at)"
    )
    outcome = case.plan(columns=None, sql=sql)
    assert (outcome.verdict, outcome.proof.rate) == ("exact", 1.0)
    assert case.read_staged() == {n: case.producer.wrote[n] for n in range(1, 201)}


def test_keys_have_schemas_too(case: Case) -> None:
    """Key and value are Avro; the key's bytes say where messages lie, and which they are."""
    schema = json.dumps({"type": "record", "name": "Key", "fields": [{"name": "order_id", "type": "long"}]})  # fmt: skip
    number = case.producer.register(schema, "key")
    key = open_codec(prepare_schema(WriterSchema("avro", schema)))
    rows = [world.make_order(n) for n in range(1, 451)]
    world.fill_table(case.url, world.ORDERS, rows)
    encode = case.producer.open()

    def wrap(row: Mapping[str, Any]) -> bytes:
        return Frame(number).wrap(key.encode({"order_id": row["order_id"]}))

    messages = [
        world.Published(
            wrap(row), encode(row), world.place_key(wrap(row), 3), (), row["updated_at"]
        )
        for row in rows
    ]
    set_config({"bootstrap.servers": case.bootstrap}, case.producer.topic, {"retention.ms": "-1"})  # fmt: skip
    world.publish(case.bootstrap, case.producer.topic, messages)
    gone = {p: sum(m.partition == p for m in messages[:200]) for p in range(3)}
    world.delete_below(case.bootstrap, case.producer.topic, gone)
    case.gaps = tuple(
        world.make_gap(case.producer.topic, p, 0, n, last=rows[199]["updated_at"])
        for p, n in gone.items()
    )
    said = {"key": {"avro": {"columns": "order_id", "registry": "main"}}}
    outcome = case.plan(message=said)
    assert (outcome.proof.rate, outcome.proof.differences) == (1.0, ())
    staged = world.read_staged(case.request(message=said)).to_pylist()
    made = {(m["key"], m["value"], m["partition"]) for m in staged}
    assert made == {(m.key, m.value, m.partition) for m in messages[:200]}
