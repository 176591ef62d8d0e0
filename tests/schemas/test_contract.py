"""Formats against the producers' own serializers and a real registry: the same bytes, both ways."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pydantic import SecretStr

from backlogctl.config import Encoded, SchemaFormat, SchemaRegistry
from backlogctl.errors import ConfigurationError
from backlogctl.replay.present.messages import Form, Mask, show_part
from backlogctl.schemas.codecs import (
    PartDecoder,
    PreparedSchema,
    StreamFormat,
    open_codec,
    prepare_schema,
)
from backlogctl.schemas.frames import (
    GLUE,
    Frame,
    Unfit,
    Unreadable,
    read_frame,
)
from backlogctl.schemas.protobuf import ProtobufCodec
from backlogctl.schemas.registry import RegistryFailure, RegistryReader, WriterSchema
from tests.kit.registry import EmbeddedRegistry, answering, counting_writes

LINE = {
    "type": "record",
    "name": "Line",
    "namespace": "shop",
    "fields": [{"name": "sku", "type": "string"}, {"name": "count", "type": "int"}],
}
AVRO = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "small", "type": ["null", "int"]},
        {"name": "ratio", "type": ["null", "double"], "default": None},
        {"name": "price", "type": "float"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 38,
                                    "scale": 6}},
        {"name": "fixed", "type": {"type": "fixed", "name": "F", "size": 8, "precision": 18,
                                   "logicalType": "decimal", "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "millis", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "clock", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "ref", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "raw", "type": ["null", "bytes"]},
        {"name": "status", "type": {"type": "enum", "name": "S", "symbols": ["NEW", "PAID"]}},
        {"name": "again", "type": ["null", "shop.S"]},
        {"name": "ok", "type": "boolean"},
        {"name": "lines", "type": {"type": "array", "items": "shop.Line"}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {"name": "any", "type": ["null", "long", "string", "shop.Line"]},
        {"name": "source", "type": "string", "default": "web"},
    ],
}  # fmt: skip
PROTOBUF = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/type/date.proto";
import "confluent/type/decimal.proto";
import "shop/line.proto";
message Unused { string id = 1; }
message Order {
  enum Status { NEW = 0; PAID = 1; }
  int64 id = 1;
  optional int32 small = 2;
  double ratio = 3;
  float price = 4;
  confluent.type.Decimal amount = 5;
  google.protobuf.Timestamp at = 6;
  google.type.Date day = 7;
  string ref = 8;
  bytes raw = 9;
  Status status = 10;
  bool ok = 11;
  repeated shop.Line lines = 12;
  map<string, int64> counts = 13;
  google.protobuf.StringValue note = 14;
  oneof any { int64 number = 15; string text = 16; }
  message Inner { uint32 x = 1; }
  Inner inner = 17;
}
"""
PROTO_LINE = 'syntax = "proto3"; package shop; message Line { string sku = 1; int32 count = 2; }'
JSON_LINE = {"type": "object", "required": ["sku"], "properties": {"sku": {"type": "string"}}}
JSON = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer"},
        "ratio": {"type": ["number", "null"]},
        "status": {"enum": ["NEW", "PAID"]},
        "ref": {"type": "string"},
        "lines": {"type": "array", "items": {"$ref": "line.json"}},
    },
}
KINDS = {"avro": "AVRO", "protobuf": "PROTOBUF", "json_schema": "JSON"}
Row = dict[str, Any]


def make_row(seed: int) -> Row:
    """What a producer in Python has at hand; of half of the rows all that may be NULL is."""
    rng = random.Random(seed)
    full = rng.random() < 0.5
    at = datetime(1962, 1, 1, tzinfo=UTC) + timedelta(microseconds=rng.randrange(4 * 10**15))
    lines = [{"sku": f"é{n}", "count": rng.randrange(-5, 9)} for n in range(rng.randrange(3))]
    scale = rng.randrange(7)
    return {
        "id": rng.choice([0, -1, 63, 64, 2**63 - 1, -(2**63), rng.randrange(10**9)]),
        "small": rng.randrange(-(2**31), 2**31) if full else None,
        "ratio": rng.uniform(-1e9, 1e9) if seed % 2 else rng.uniform(-999, 999),
        "price": float(rng.randrange(10**6)) / 8,
        "amount": Decimal(rng.randrange(-(10**18), 10**18)).scaleb(-scale),
        "fixed": Decimal(rng.randrange(-(10**15), 10**15)).scaleb(-2),
        "at": at,
        "millis": at if full else None,
        "day": at.date(),
        "clock": time(rng.randrange(24), 5, 59, rng.randrange(10**6)),
        "ref": str(uuid.UUID(int=rng.getrandbits(128))),
        "raw": rng.randbytes(rng.randrange(9)) if full else None,
        "status": rng.choice(["NEW", "PAID"]),
        "again": "PAID" if full else None,
        "ok": rng.random() < 0.5,
        "lines": lines,
        "counts": {"a": rng.randrange(-9, 10**12)} if full else {},
        "any": rng.choice([None, 7, "text", {"sku": "x", "count": 1}]),
        "note": "" if full else None,
        "number": None if full else 5,
        "text": "ü" if full else None,
        "inner": {"x": rng.randrange(2**32)} if full else None,
    }


def as_source(value: Any) -> Any:
    """As a rebuild reads it: decimals and times are exact text, maps are pairs."""
    match value:
        case Decimal():
            return format(value, "f")
        case datetime():
            return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        case date() | time():
            return value.isoformat()
        case list():
            return [as_source(item) for item in value]
        case dict():
            return {name: as_source(item) for name, item in value.items()}
    return value


@dataclass
class World:
    """A registry with the schemas of one subject, and the producer's serializer."""

    client: SchemaRegistryClient
    url: str
    kind: str
    subject: str
    serializer: Any
    convert: Callable[[Row], Any]
    fields: tuple[str, ...]
    spaced: bool = False

    def write(self, row: Row) -> bytes:
        """What the producer sends."""
        context = SerializationContext(self.subject, MessageField.VALUE)
        raw = self.serializer(self.convert(row), context)
        assert isinstance(raw, bytes)
        return raw

    def open(self, **more: Any) -> StreamFormat:
        """The stream's format."""
        said = {"columns": "id", "registry": "main", "spaced": self.spaced, **more}
        registries = {"main": SchemaRegistry(url=self.url)}
        return StreamFormat(self.kind, Encoded.model_validate(said), registries)

    def cut(self, row: Row) -> Row:
        """The fields that the schema has."""
        return {name: row[name] for name in self.fields if name in row}


REFERENCES = {
    "avro": ("shop.Line", json.dumps(LINE)),
    "protobuf": ("shop/line.proto", PROTO_LINE),
    "json_schema": ("line.json", json.dumps(JSON_LINE)),
}


def make_message(codec: ProtobufCodec, row: Row) -> Any:
    """The message that a producer fills field by field, by the types of its own."""
    message = codec._class()
    for name in ("id", "ratio", "price", "ref", "ok"):
        setattr(message, name, row[name])
    for name in ("small", "raw", "number", "text"):
        if row[name] is not None:
            setattr(message, name, row[name])
    message.status = message.Status.Value(row["status"])
    message.at.FromDatetime(row["at"])
    message.day.year, message.day.month, message.day.day = row["day"].timetuple()[:3]
    number = int(row["amount"].scaleb(-row["amount"].as_tuple().exponent))
    size = (number if number >= 0 else ~number).bit_length() // 8 + 1
    message.amount.value = number.to_bytes(size, "big", signed=True)
    message.amount.precision = len(str(abs(number)))
    message.amount.scale = -row["amount"].as_tuple().exponent
    for line in row["lines"]:
        message.lines.add(**line)
    for name, value in row["counts"].items():
        message.counts[name] = value
    if row["note"] is not None:
        message.note.value = row["note"]
        message.note.SetInParent()
    if row["inner"] is not None:
        message.inner.x = row["inner"]["x"]
    return message


def open_world(url: str, kind: str, *, subject: str, spaced: bool = False) -> World:
    """Registers the schemas, as a producer's build does."""
    client = SchemaRegistryClient({"url": url})
    name, text = REFERENCES[kind]
    referred = f"{subject}-line"
    client.register_schema(referred, Schema(text, KINDS[kind]))
    reference = SchemaReference(name, referred, 1)
    main = {"avro": json.dumps(AVRO), "protobuf": PROTOBUF, "json_schema": json.dumps(JSON)}[kind]
    schema = Schema(main, KINDS[kind], [reference])
    number = client.register_schema(f"{subject}-value", schema)
    conf: dict[str, Any] = {"auto.register.schemas": False}
    if kind == "avro":
        fields = tuple(str(field["name"]) for field in AVRO["fields"])  # type: ignore[index]
        made: Any = AvroSerializer(client, schema, conf=conf)
        return World(client, url, kind, subject, made, dict, fields)
    if kind == "json_schema":
        # With orjson beside it this serializer writes no spaces, as Jackson does; else it does.
        encode = json.dumps if spaced else None
        made = JSONSerializer(schema, client, conf=conf, json_encode=encode)
        names = ("id", "ratio", "status", "ref", "lines")
        return World(client, url, kind, subject, made,
                     lambda row: {name: row[name] for name in names}, names, spaced=spaced)  # fmt: skip
    prepared = prepare_schema(WriterSchema(kind, PROTOBUF, (REFERENCES[kind],)))
    codec = open_codec(prepared, message="shop.Order")
    assert isinstance(codec, ProtobufCodec)
    names = tuple(field.name for field in codec._type.fields)

    class Framed:
        """The frame is ProtobufSerializer's; it registers descriptors, so its id is ours."""

        def __call__(self, message: Any, context: SerializationContext) -> bytes:
            mock = SchemaRegistryClient.new_client({"url": f"mock://{subject}"})
            options: Any = {"use.deprecated.format": False}
            raw = ProtobufSerializer(type(message), mock, options)(message, context)
            assert isinstance(raw, bytes)
            return raw[:1] + number.to_bytes(4, "big") + raw[5:]

    return World(client, url, kind, subject, Framed(), lambda row: make_message(codec, row), names)


@pytest.fixture(params=[*KINDS, "json_schema spaced"])
def world(request: pytest.FixtureRequest, registry: EmbeddedRegistry, unique: str) -> World:
    kind, _, spaced = request.param.partition(" ")
    return open_world(registry.url, kind, subject=f"t{unique}", spaced=bool(spaced))


def test_rows_become_the_producers_bytes_and_back(world: World) -> None:
    opened = world.open()
    for seed in range(200):
        row = make_row(seed)
        theirs = world.write(row)
        frame = opened.read_frame(theirs)
        codec = open_codec(
            opened.prepare(frame.schema_id), indexes=frame.indexes, spaced=world.spaced
        )
        given = as_source(world.cut(row))
        if (
            world.kind == "json_schema"
            and not world.spaced
            and not 1e-3 < abs(row["ratio"] or 1) < 1e7
        ):
            continue  # refused: languages differ
        made = frame.wrap(codec.encode(given))
        assert made == theirs, f"seed {seed}"
        shown = json.loads(opened.decode(theirs))
        assert str(shown.get("id", 0)) == str(row["id"])
        assert opened.is_canonical(theirs)


def test_a_registry_is_never_written_to(registry: EmbeddedRegistry, unique: str) -> None:
    world = open_world(registry.url, "avro", subject=f"w{unique}")
    theirs = world.write(make_row(1))
    with counting_writes(registry.url) as (url, writes):
        world.url = url
        opened = world.open()
        opened.decode(theirs)
        frame = opened.read_frame(theirs)
        assert opened.store.open().list_older(f"w{unique}-value", frame.schema_id) == ()
        assert opened.store.open().list_older("nobody", frame.schema_id) is None
        with pytest.raises(RegistryFailure, match="could not read schema 999999: "):
            opened.prepare(999_999)
        assert writes == []


LACKING = [
    pytest.param("avro", {"ref": None}, "field ref: is NULL", id="avro null"),
    pytest.param("avro", {"status": "GONE"}, "field status: is no symbol", id="avro enum"),
    pytest.param("avro", {"small": 2**31}, "field small: the schema has int", id="avro range"),
    pytest.param("avro", {"amount": "1.1234567"}, "field amount: ", id="avro scale"),
    pytest.param("avro", {"lines": [{"sku": "x"}]}, "field lines.count: the row has none", id="avro nested"),
    pytest.param("protobuf", {"id": "x"}, "field id: the schema has a whole", id="protobuf type"),
    pytest.param("protobuf", {"status": "GONE"}, "field status: ", id="protobuf enum"),
    pytest.param("json_schema", {"id": "x"}, "field id: the schema's `type`", id="json type"),
    pytest.param("json_schema", {"lines": [{}]}, "field lines.0.sku: the row has none", id="json nested"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "change", "told"), LACKING)
def test_what_the_schema_does_not_take_names_the_field(
    registry: EmbeddedRegistry, unique: str, kind: str, change: Row, told: str
) -> None:
    world = open_world(registry.url, kind, subject=f"u{unique}")
    row = make_row(3)
    opened = world.open()
    frame = opened.read_frame(world.write(row))
    codec = open_codec(opened.prepare(frame.schema_id), indexes=frame.indexes)
    with pytest.raises(Unfit, match=told) as raised:
        codec.encode(as_source({**world.cut(row), **change}))
    assert "GONE" not in str(raised.value)


def list_frames() -> Iterator[Any]:
    guid = uuid.UUID(int=2**127 + 5)
    for number in (1, 300, 2**31):
        yield pytest.param(Frame(number), False, id=f"id {number}")
    for indexes in ((0,), (3,), (1, 0, 200)):
        yield pytest.param(Frame(7, indexes), True, id=f"indexes {indexes}")
    yield pytest.param(Frame(guid), False, id="guid before")
    yield pytest.param(Frame(guid, (1, 2), "header"), True, id="guid in a header")
    yield pytest.param(Frame(guid, (), GLUE), False, id="glue")
    yield pytest.param(Frame(guid, (), GLUE, compressed=True), False, id="glue, zlib")


@pytest.mark.parametrize(("frame", "indexed"), list(list_frames()))
@pytest.mark.parametrize("body", [b"", b"\x00\x03body" * 40])
def test_frames_are_read_as_they_were_written(frame: Frame, indexed: bool, body: bytes) -> None:
    raw = frame.wrap(body)
    assert read_frame(raw, frame.to_header(), indexed=indexed) == (frame, body)


@pytest.mark.parametrize("raw", [b"", b"{}", b"\x00\x01", b"\x02aaaaaaa", b"\x03\x07" + b"x" * 20])
def test_what_has_no_frame_is_told(raw: bytes) -> None:
    with pytest.raises(Unreadable):
        read_frame(raw, indexed=False)


def test_guids_in_headers_are_confluents(unique: str) -> None:
    """Their registry with GUIDs is confluent-kafka's own: Apicurio has none."""
    client = SchemaRegistryClient.new_client({"url": f"mock://{unique}"})
    schema = Schema(json.dumps(LINE), "AVRO")
    client.register_schema(f"{unique}-value", schema)
    conf: dict[str, Any] = {"schema.id.serializer": header_schema_id_serializer}
    serializer: Any = AvroSerializer(client, schema, conf=conf)
    headers: Any = []
    context = SerializationContext(unique, MessageField.VALUE, headers)
    raw = serializer({"sku": "a", "count": 1}, context)
    frame, body = read_frame(raw, dict(headers)["__value_schema_id"], indexed=False)
    assert isinstance(frame.schema_id, uuid.UUID)
    codec = open_codec(PreparedSchema(WriterSchema("avro", json.dumps(LINE))))
    assert frame.wrap(codec.encode({"sku": "a", "count": 1})) == raw == body
    assert headers == [("__value_schema_id", frame.to_header())]


WRONG: Mapping[str, tuple[str, str]] = {
    "avro": ('{"type": "record"', "is no Avro"),
    "protobuf": ('syntax = "proto3"; import "gone.proto"; message A {}', "protoc does not take"),
    "json_schema": ('{"type": 7}', "is no JSON Schema"),
}


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_schema_that_is_none_is_refused(kind: str) -> None:
    text, told = WRONG[kind]
    with pytest.raises(ConfigurationError, match=told):
        open_codec(prepare_schema(WriterSchema(kind, text)))


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (200, b"<html>log in</html>", "what answers is no schema registry"),
        (200, b"[]", "what answers is no schema registry"),
        (200, b"{}", "what answers is no schema registry"),
        (200, b'{"schema": 5}', "what answers is no schema registry"),
        (401, b'{"error_code": 401, "message": "no such login"}', "no such login"),
    ],
)
def test_what_is_no_registry_is_told(status: int, body: bytes, told: str) -> None:
    with answering(status, body) as url:
        section = SchemaRegistry(url=url, user="reader", password=SecretStr("hunter2secret"))
        with pytest.raises(RegistryFailure, match=told) as caught:
            RegistryReader("main", section).read_schema(7, "avro")
    assert caught.value.subject == "registry main"
    assert not caught.value.retryable
    assert "hunter2" not in str(caught.value)


def make_codec(kind: str, text: str) -> Any:
    return open_codec(
        prepare_schema(WriterSchema(kind, text)), indexes=(0,) if kind == "protobuf" else ()
    )


UNION = json.dumps(
    {"type": "record", "name": "U", "fields": [{"name": "u", "type": ["null", "long", "string"]}]}
)
LIMITED = 'syntax = "proto3"; import "google/protobuf/any.proto"; message M { int32 a = 1; uint64 b = 2; google.protobuf.Any c = 3; }'
NUMBERS = json.dumps(
    {"properties": {"a": {"type": "number", "multipleOf": 0.01}, "n": {"type": "integer"}}}
)


def test_text_is_text_where_a_union_has_both() -> None:
    codec = make_codec("avro", UNION)
    assert [codec.decode(codec.encode({"u": one})) for one in ("0012", 12, None)] == [
        {"u": "0012"},
        {"u": 12},
        {"u": None},
    ]


@pytest.mark.parametrize(
    ("kind", "text", "row", "told"),
    [
        ("avro", UNION, {"u": 1, "typo": 2}, "field typo: the schema has none"),
        ("protobuf", LIMITED, {"typo": 2}, "field typo: the schema has none"),
        ("protobuf", LIMITED, {"a": 3_000_000_000}, "field a: the schema has a whole number of 32"),
        ("protobuf", LIMITED, {"b": -1}, "field b: the schema has a whole number of 64 bits, none"),
        ("json_schema", NUMBERS, {"a": Decimal("1.234")}, "field a: the schema's `multipleOf`"),
        ("json_schema", NUMBERS, {"a": float("nan")}, "it is not finite"),
        ("json_schema", NUMBERS, {"a": 1.5e300}, "the schema does not take it"),
    ],
)
def test_what_does_not_fit_is_told_without_its_value(
    kind: str, text: str, row: dict[str, Any], told: str
) -> None:
    with pytest.raises(Unfit, match=told) as caught:
        make_codec(kind, text).encode(row)
    assert "3000000000" not in str(caught.value)


def test_numbers_of_json_are_written_where_all_write_them_alike() -> None:
    text = json.dumps({"type": "object"})
    plain = make_codec("json_schema", text)
    assert (
        plain.encode({"b": 0.5, "e": Decimal("12.50"), "f": 100.0})
        == b'{"b":0.5,"e":12.50,"f":100.0}'
    )
    for number in (1e7, -12345678.0, 1e-5):
        with pytest.raises(Unfit, match="in different ways"):
            plain.encode({"a": number})
    spaced = open_codec(prepare_schema(WriterSchema("json_schema", text)), spaced=True)
    assert spaced.encode({"a": 1e7}) == b'{"a": 10000000.0}'
    whole = {"a": Decimal("12.34"), "n": Decimal(5)}
    assert make_codec("json_schema", NUMBERS).encode(whole) == b'{"a":12.34,"n":5}'


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *(("avro", text) for text in ("", "5", "null", "{}", '{"type": "array"}')),
        *(("json_schema", text) for text in ("", "5", "null", '{"$schema": 5}')),
        *(("protobuf", text) for text in ("", "5", "message {")),
    ],
)
def test_what_is_no_schema_is_told(kind: str, text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_codec(kind, text)
    assert "WARNING" not in str(caught.value)


def test_a_type_that_nobody_knows_is_unreadable() -> None:
    raw = b"\x1a\x08\x0a\x06a.b/Gone"[:2] + b"\x0a\x06b/Gone"
    with pytest.raises(Unreadable, match="it has no JSON"):
        make_codec("protobuf", LIMITED).decode(raw)


def test_a_file_is_one_schema(tmp_path: Path) -> None:
    """Of another one it may call a field by another's name: a mask would show what it hides."""
    file = tmp_path / "order.avsc"
    file.write_text(UNION)
    raw = Frame(2).wrap(make_codec("avro", UNION).encode({"u": "x"}))

    def open_file(**said: Any) -> StreamFormat:
        section = SchemaFormat.model_validate({"schema": file, **said})
        return StreamFormat("avro", section, {})

    for said, told in (({}, False), ({"schema_id": 2}, True)):
        its = open_file(**said)
        shown = PartDecoder({"value": its}).decode("value", raw, ())
        assert shown is not None
        assert (shown.text, shown.is_named) == ('{"u": "x"}', told)
        hidden = show_part(raw, Mask.read(["email"]), is_open=False, decoded=shown)
        assert (hidden.form is Form.HIDDEN) is not told
    shown = PartDecoder({"value": open_file(schema_id=1)}).decode("value", raw, ())
    assert shown is not None
    assert shown.text is None
    assert "schema 2 is not this file's, which is 1" in shown.told


def test_a_version_that_was_deleted_for_good_is_missed(registry: EmbeddedRegistry) -> None:
    """Nobody can say then that there was no older schema."""
    versions = [{"version": 2, "id": 7}]

    class Client:
        def get_versions(self, subject: str, deleted: bool) -> list[int]:
            return [one["version"] for one in versions]

        def get_version(self, subject: str, version: int, deleted: bool) -> Any:
            return SimpleNamespace(schema_id=7, guid=None)

    reader = RegistryReader("main", SchemaRegistry(url=registry.url))
    reader._client = cast(Any, Client())
    assert reader.list_older("s", 7) is None
    versions[0]["version"] = 1
    assert reader.list_older("s", 7) == ()
