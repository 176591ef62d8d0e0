"""How messages name their schema: the frames of Confluent's and of AWS Glue's serializers.

Sources: Confluent's wire format (docs.confluent.io, "Wire format"; `SchemaId` of confluent-kafka),
and `AWSSchemaRegistryConstants` of awslabs/aws-glue-schema-registry.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

VALUE_HEADER, KEY_HEADER = "__value_schema_id", "__key_schema_id"
CONFLUENT, HEADER, GLUE = "confluent", "header", "glue"
_NUMBER, _GUID, _GLUE = 0, 1, 3
_PLAIN, _ZLIB = 0, 5
_MOST_INDEXES = 1000
# How many bytes tell the schema, by the first of them: Confluent's number and GUID, Glue's GUID.
LEADS: Mapping[int, int] = {_NUMBER: 5, _GUID: 17, _GLUE: 18}


class Unreadable(ValueError):
    """Bytes that are not what their format says; the text says why."""


class Unfit(ValueError):
    """A row that the schema does not take; the text names the field."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands around the bytes of a value or key.

    Attributes:
        schema_id: a registry's number, or a GUID; Glue's is that of the schema's version.
        indexes: of Protobuf, the way to the message's type; else empty.
        kind: `confluent`, `header` or `glue`.
        compressed: Glue's zlib.
    """

    schema_id: int | UUID
    indexes: tuple[int, ...] = ()
    kind: str = CONFLUENT
    compressed: bool = False

    def describe(self) -> str:
        """For people."""
        where = "" if self.kind == CONFLUENT else f" ({self.kind})"
        types = f", message {list(self.indexes)}" if self.indexes not in ((), (0,)) else ""
        return f"schema {self.schema_id}{types}{where}"

    def wrap(self, body: bytes) -> bytes:
        """The bytes of a message."""
        if self.kind == GLUE:
            assert isinstance(self.schema_id, UUID)
            lead = bytes([_GLUE, _ZLIB if self.compressed else _PLAIN]) + self.schema_id.bytes
            return lead + (zlib.compress(body) if self.compressed else body)
        return body if self.kind == HEADER else self._lead() + body

    def to_header(self) -> bytes | None:
        """The value of the header that names the schema; None where none does."""
        return self._lead() if self.kind == HEADER else None

    def _lead(self) -> bytes:
        if isinstance(self.schema_id, UUID):
            return bytes([_GUID]) + self.schema_id.bytes + write_indexes(self.indexes)
        return bytes([_NUMBER]) + self.schema_id.to_bytes(4, "big") + write_indexes(self.indexes)


def read_frame(raw: bytes, header: bytes | None = None, *, indexed: bool) -> tuple[Frame, bytes]:
    """The frame, and the bytes inside.

    Args:
        header: that of `VALUE_HEADER` or `KEY_HEADER`, where the message has it.
        indexed: whether the format is Protobuf.

    Raises:
        Unreadable: it has no frame that is known.
    """
    if header is not None:
        frame, rest = _read_lead(header, HEADER, indexed)
        if rest:
            raise Unreadable("the header of its schema has more bytes than a GUID")
        return frame, raw
    if raw[:1] == bytes([_GLUE]) and len(raw) >= 18:
        return _read_glue(raw)
    return _read_lead(raw, CONFLUENT, indexed)


def read_schema_id(lead: bytes) -> int | UUID | None:
    """The schema that a message's first bytes, or its header, name; None where they name none."""
    size = LEADS.get(lead[0]) if lead else None
    if size is None or len(lead) < size:
        return None
    if lead[0] == _NUMBER:
        return int.from_bytes(lead[1:size], "big")
    return UUID(bytes=lead[size - 16 : size])


def _read_lead(raw: bytes, kind: str, indexed: bool) -> tuple[Frame, bytes]:
    first = raw[0] if raw else None
    size = {_NUMBER: 5, _GUID: 17}.get(-1 if first is None else first)
    if size is None or len(raw) < size:
        told = "it is empty" if first is None else f"its first byte is {first}"
        raise Unreadable(f"it has no frame with a schema's id: {told}, {len(raw)} bytes in all")
    name: int | UUID
    name = int.from_bytes(raw[1:5], "big") if first == _NUMBER else UUID(bytes=raw[1:17])
    indexes, rest = read_indexes(raw[size:]) if indexed else ((), raw[size:])
    return Frame(name, indexes, kind), rest


def _read_glue(raw: bytes) -> tuple[Frame, bytes]:
    if raw[1] not in (_PLAIN, _ZLIB):
        raise Unreadable(f"its compression is {raw[1]}, which Glue's header does not know")
    frame = Frame(UUID(bytes=raw[2:18]), (), GLUE, raw[1] == _ZLIB)
    try:
        return frame, zlib.decompress(raw[18:]) if frame.compressed else raw[18:]
    except zlib.error as error:
        raise Unreadable(f"it cannot be decompressed: {error}") from None


def find_frame_header(headers: Mapping[str, bytes | None], *, key: bool) -> bytes | None:
    """The header that names the schema; None where there is none."""
    return headers.get(KEY_HEADER if key else VALUE_HEADER)


def write_indexes(indexes: tuple[int, ...]) -> bytes:
    """`[0]`, the commonest, is one byte; of other formats there are none."""
    if not indexes:
        return b""
    if indexes == (0,):
        return b"\0"
    return b"".join(_write_varint(number) for number in (len(indexes), *indexes))


def read_indexes(raw: bytes) -> tuple[tuple[int, ...], bytes]:
    """The indexes, and what follows.

    Raises:
        Unreadable: they are cut off.
    """
    count, raw = _read_varint(raw)
    if not 0 <= count <= _MOST_INDEXES:
        raise Unreadable(f"it has {count} message indexes")
    found = []
    for _ in range(count):
        number, raw = _read_varint(raw)
        found.append(number)
    return tuple(found) or (0,), raw


def _write_varint(number: int) -> bytes:
    coded, made = number << 1, bytearray()  # zigzag; no index is negative
    while coded > 0x7F:
        made.append(coded & 0x7F | 0x80)
        coded >>= 7
    return bytes([*made, coded])


def _read_varint(raw: bytes) -> tuple[int, bytes]:
    coded = 0
    for at, byte in enumerate(raw[:10]):
        coded |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            return coded >> 1 ^ -(coded & 1), raw[at + 1 :]
    raise Unreadable("its message indexes are cut off")
