"""Values with a schema: chosen by their fields, shown by them, hidden by them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from backlogctl.schemas.codecs import Codec, open_codec, prepare_schema
from backlogctl.schemas.frames import Frame
from backlogctl.schemas.registry import WriterSchema
from tests.kit.kafka import set_config
from tests.kit.registry import EmbeddedRegistry
from tests.kit.shop import Shop, offload, place
from tests.replay.redrive.world import AT, KEEP, Letter, keys_of, plan, publish, read_sent, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("spark")]

TOTAL = 30
BUYER = [{"name": "email", "type": "string"}, {"name": "age", "type": ["null", "int"]}]
FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "status", "type": {"type": "enum", "name": "S", "symbols": ["NEW", "PAID"]}},
    {"name": "buyer", "type": {"type": "record", "name": "Buyer", "fields": BUYER}},
    {"name": "lines", "type": {"type": "array", "items": "string"}},
]
# From order 20 on.
LATER = [*FIELDS, {"name": "source", "type": "string", "default": "web"}]
PROTOBUF = """
syntax = "proto3";
message Order {
  message Buyer { string email = 1; optional int32 age = 2; }
  enum Status { NEW = 0; PAID = 1; }
  int64 id = 1; Status status = 2; Buyer buyer = 3; repeated string lines = 4;
}
"""
JSON = {"type": "object", "properties": {
    "id": {"type": "integer"}, "status": {"type": "string"}, "lines": {"type": "array", "items": {"type": "string"}},
    "buyer": {"type": "object", "properties": {"email": {"type": "string"}, "age": {"type": ["integer", "null"]}}}}}  # fmt: skip
NAMES = {"avro": "AVRO", "protobuf": "PROTOBUF", "json_schema": "JSON"}


def make_order(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "status": "PAID" if number % 2 else "NEW",
        "buyer": {"email": f"u{number}@x.org", "age": None if number % 3 == 0 else number},
        "lines": ["a", "b"][: number % 3],
    }


def open_schema(registry: EmbeddedRegistry, topic: str, kind: str, text: str) -> tuple[int, Codec]:
    client = SchemaRegistryClient({"url": registry.url})
    number = client.register_schema(f"{topic}-value", Schema(text, NAMES[kind]))
    return number, open_codec(prepare_schema(WriterSchema(kind, text)), indexes=(0,) if kind == "protobuf" else ())  # fmt: skip


def configure(shop: Shop, registry: EmbeddedRegistry, kind: str, **stream: Any) -> None:
    """A stream that has no source: what it was made of nobody knows, and its format all the same."""
    shop.registries = {"main": {"url": registry.url}}
    shop.write_config(source=None, formats={"value": {kind: {"registry": "main"}}}, **stream)


def fill(shop: Shop, registry: EmbeddedRegistry, kind: str) -> None:
    """30 orders; those of Avro from order 20 on by a later schema; the last is no order."""

    def make_text(fields: list[dict[str, Any]]) -> str:
        return json.dumps({"type": "record", "name": "Order", "fields": fields})

    texts = {
        "avro": [make_text(FIELDS), make_text(LATER)],
        "protobuf": [PROTOBUF],
        "json_schema": [json.dumps(JSON)],
    }[kind]
    schemas = [open_schema(registry, shop.topic, kind, text) for text in texts]
    indexes = (0,) if kind == "protobuf" else ()
    letters = []
    for number in range(TOTAL):
        schema_id, codec = schemas[-1 if number >= 20 else 0]
        row = make_order(number)
        if kind == "avro" and number >= 20:
            row["source"] = "app"
        value = Frame(schema_id, indexes).wrap(codec.encode(row))
        letters.append(Letter(str(number).encode(), value, (), place(number), AT + number * 1000))
    letters.append(Letter(b"broken", b"{plain}", (), 0, AT))
    set_config(shop.properties, shop.topic, KEEP)
    publish(shop, shop.topic, letters)


@pytest.mark.parametrize("kind", ["avro", "protobuf", "json_schema"])
def test_fault_187_chosen_by_fields_and_what_has_none_is_counted(
    empty_shop: Shop, registry: EmbeddedRegistry, kind: str
) -> None:
    shop = empty_shop
    configure(shop, registry, kind)
    fill(shop, registry, kind)
    where = "value.status = 'PAID' and value.buyer.age > 4 and size(value.lines) = 1"
    planned = plan(shop, "--from", "log", "--all", "--where", where)
    expected = [n for n in range(TOTAL) if n % 2 and n % 3 == 1 and n > 4]
    assert planned["counts"]["staged"] == len(expected)
    assert "1 message cannot be decoded" in " ".join(planned["warnings"])
    shown = shop.call("show", planned["id"]).out
    assert "u7@x.org" in shown
    run(shop, planned["id"])
    assert keys_of(read_sent(shop)) == Counter(str(n).encode() for n in expected)
    # What cannot be read has no field that is NULL.
    none = plan(shop, "--from", "log", "--all", "--where", "VALUE.buyer.age IS NULL")
    assert none["counts"]["staged"] == len([n for n in range(TOTAL) if n % 3 == 0])
    # Bytes as they were.
    assert all(one.value is not None and one.value[0] == 0 for one in read_sent(shop))


def test_chosen_by_a_field_that_only_the_later_schema_has(
    empty_shop: Shop, registry: EmbeddedRegistry
) -> None:
    shop = empty_shop
    configure(shop, registry, "avro")
    fill(shop, registry, "avro")
    planned = plan(shop, "--from", "log", "--all", "--where", "value.source = 'app'")
    assert planned["counts"]["staged"] == 10
    text = plan(shop, "--from", "log", "--all", "--where", "value_json like '%u7@x.org%'")
    assert text["counts"]["staged"] == 1
    wrong = plan(shop, "--from", "log", "--all", "--where", "value.stat = 'PAID'", code=2)
    assert "stat" in wrong["message"]
    assert "value.status" in wrong["hint"]
    # What speaks of no value needs no registry.
    (shop.directory / "backlog.yaml").write_text(
        (shop.directory / "backlog.yaml").read_text().replace(registry.url, "http://127.0.0.1:9")
    )
    assert plan(shop, "--from", "log", "--all", "--where", "key = '7'")["counts"]["staged"] == 1
    away = plan(shop, "--from", "log", "--all", "--where", "value.id = 7", code=1)
    assert away["subject"] == "registry main"


@pytest.mark.parametrize("kind", ["avro", "protobuf", "json_schema"])
def test_looked_into_and_masked(
    empty_shop: Shop, registry: EmbeddedRegistry, spark: SparkSession, kind: str
) -> None:
    shop = empty_shop
    configure(shop, registry, kind)
    fill(shop, registry, kind)
    archive = offload(shop, spark)
    configure(shop, registry, kind)

    def peek(key: str) -> Mapping[str, Any]:
        (found,) = shop.call("archive", "peek", archive, "--key", key, "--json").document[
            "messages"
        ]
        value: dict[str, Any] = found["value"]
        return value

    seen = peek("7")
    assert seen["form"] == "json"
    # Protobuf's JSON writes numbers of 64 bits as text.
    wanted = {**make_order(7), "id": "7"} if kind == "protobuf" else make_order(7)
    assert json.loads(seen["text"]) == wanted
    assert seen["told"].startswith("schema ")
    told = shop.call("archive", "peek", archive, "--key", "broken").out
    assert "not decoded: it has no frame" in told
    configure(shop, registry, kind, mask=["email"])
    masked = peek("7")
    assert json.loads(masked["text"])["buyer"]["email"] == "***"
    assert json.loads(masked["text"])["status"] == "PAID"
    # What cannot be looked into is hidden whole.
    assert peek("broken")["form"] == "hidden"
    assert "u7@x.org" not in shop.call("archive", "peek", archive, "--key", "7").out
    planned = plan(shop, "--from", f"archive:{archive}", "--all", "--where", "value.id = 7")
    assert planned["counts"]["staged"] == 1
    assert "u7@x.org" not in shop.call("show", planned["id"]).out
    assert "***" in shop.call("show", planned["id"]).out


def test_fault_187_a_registry_that_is_away_hides_what_is_masked(
    empty_shop: Shop, registry: EmbeddedRegistry, spark: SparkSession
) -> None:
    shop = empty_shop
    configure(shop, registry, "avro")
    fill(shop, registry, "avro")
    archive = offload(shop, spark)
    configure(shop, registry, "avro", mask=["email"])
    path = shop.directory / "backlog.yaml"
    path.write_text(path.read_text().replace(registry.url, "http://127.0.0.1:9"))
    said = shop.call("archive", "peek", archive, "--key", "7").out
    assert "could not read schema" in said
    assert "u7@x.org" not in said
