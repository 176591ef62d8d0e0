"""The shop with Avro: its table is in MariaDB, and its messages have a schema of a registry."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from examples.lost_orders import TOPIC, Encode, Order
from tests.kit.registry import EmbeddedRegistry
from tests.kit.services import EmbeddedMariaDb

_AMOUNT = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
_MOMENT = {"type": "long", "logicalType": "timestamp-micros"}
SCHEMA = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "order_id", "type": "string"},
        {"name": "user_id", "type": "int"},
        {"name": "status", "type": "string"},
        {"name": "amount", "type": _AMOUNT},
        {"name": "updated_at", "type": _MOMENT},
    ],
}


@dataclass(frozen=True, slots=True)
class AvroShop:
    """Its database and registry, and the serializer that its service uses."""

    source: str
    environment: Mapping[str, str]
    encode: Encode


@contextmanager
def open_avro_shop() -> Iterator[AvroShop]:
    """Starts both; they are gone at the end."""
    with EmbeddedMariaDb() as mariadb, EmbeddedRegistry() as registry:
        mariadb.execute("CREATE DATABASE shop")
        serialize: Any = AvroSerializer(
            SchemaRegistryClient({"url": registry.url}), json.dumps(SCHEMA)
        )
        context = SerializationContext(TOPIC, MessageField.VALUE)

        def encode(order: Order) -> bytes:
            made: bytes = serialize(asdict(order), context)
            return made

        source = mariadb.url("shop")
        yield AvroShop(source, {"SHOP_DATABASE": source, "SHOP_REGISTRY": registry.url}, encode)
