"""Codecs of the formats, opened once in each process, and what decodes the messages of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol
from uuid import UUID

from backlogctl.config import Encoded, SchemaRegistry
from backlogctl.errors import BacklogError
from backlogctl.json_text import write_json
from backlogctl.schemas.frames import Frame, Unreadable, read_frame
from backlogctl.schemas.registry import SchemaStore, WriterSchema

AVRO, PROTOBUF, JSON_SCHEMA = "avro", "protobuf", "json_schema"


class Codec(Protocol):
    """One schema that rows become bytes by, and bytes become values."""

    @property
    def required(self) -> frozenset[str]: ...

    def encode(self, value: Any) -> bytes: ...

    def decode(self, raw: bytes) -> Any: ...

    def encode_again(self, raw: bytes) -> bytes: ...


@dataclass(frozen=True, slots=True)
class PreparedSchema:
    """A schema that can be sent to workers: they ask no registry, and run no compiler.

    `compiled` is Protobuf's descriptors, else empty.
    """

    schema: WriterSchema
    compiled: bytes = field(default=b"", repr=False)


def prepare_schema(schema: WriterSchema) -> PreparedSchema:
    """Compiles it where that is needed.

    Raises:
        ConfigurationError: it is no schema of its format.
    """
    if schema.kind != PROTOBUF:
        return PreparedSchema(schema)
    from backlogctl.schemas.protobuf import compile_schema

    return PreparedSchema(schema, compile_schema(schema))


@lru_cache(maxsize=64)
def open_codec(
    prepared: PreparedSchema,
    *,
    message: str = "",
    indexes: tuple[int, ...] = (),
    spaced: bool = False,
) -> Codec:
    """The codec of a schema; of this process, made once.

    Args:
        message, indexes: which type of a Protobuf file; the name wins.
        spaced: as `JsonCodec` says.

    Raises:
        ConfigurationError: it is no schema of its format, or has no such type.
    """
    match prepared.schema.kind:
        case "avro":
            from backlogctl.schemas.avro import AvroCodec

            return AvroCodec(prepared.schema)
        case "protobuf":
            from backlogctl.schemas.protobuf import ProtobufCodec

            return ProtobufCodec(prepared.compiled, message, indexes)
    from backlogctl.schemas.json_schema import JsonCodec

    return JsonCodec(prepared.schema, spaced=spaced)


@dataclass(frozen=True, slots=True)
class Decoder:
    """Reads values or keys by schemas that are at hand; it can be sent to workers."""

    kind: str
    schemas: Mapping[int | UUID, PreparedSchema]
    spaced: bool = False

    def decode(self, raw: bytes, header: bytes | None = None) -> str:
        """Its JSON.

        Args:
            header: that which names the schema, where the message has it.

        Raises:
            Unreadable: why it cannot be decoded.
        """
        codec, body = self._find(raw, header)
        return write_json(codec.decode(body))

    def is_canonical(self, raw: bytes, header: bytes | None = None) -> bool:
        """Whether this library, too, writes these bytes for what they hold.

        Raises:
            Unreadable
        """
        codec, body = self._find(raw, header)
        return codec.encode_again(body) == body

    def _find(self, raw: bytes, header: bytes | None) -> tuple[Codec, bytes]:
        frame, body = read_frame(raw, header, indexed=self.kind == PROTOBUF)
        prepared = self.schemas.get(frame.schema_id)
        if prepared is None:
            raise Unreadable(f"its schema {frame.schema_id} is not known here")
        try:
            return open_codec(prepared, indexes=frame.indexes, spaced=self.spaced), body
        except BacklogError as error:
            raise Unreadable(error.message) from None


class StreamFormat:
    """The format of a stream's values or keys, with the schemas that were asked for so far."""

    def __init__(
        self, kind: str, encoded: Encoded, registries: Mapping[str, SchemaRegistry]
    ) -> None:
        self.kind = kind
        self.encoded = encoded
        self.store = SchemaStore(kind, encoded, registries)
        self._prepared: dict[int | UUID, PreparedSchema] = {}

    def read_frame(self, raw: bytes, header: bytes | None = None) -> Frame:
        """The frame of a value or key.

        Raises:
            Unreadable
        """
        return read_frame(raw, header, indexed=self.kind == PROTOBUF)[0]

    def prepare(self, schema_id: int | UUID) -> PreparedSchema:
        """A schema, asked for once.

        Raises:
            RegistryFailure, ConfigurationError.
        """
        if schema_id not in self._prepared:
            self._prepared[schema_id] = prepare_schema(self.store.read_schema(schema_id))
        return self._prepared[schema_id]

    def make_decoder(self, frames: set[int | UUID]) -> Decoder:
        """Of messages with these schemas; one that cannot be had is not known to it."""
        for schema_id in frames:
            try:
                self.prepare(schema_id)
            except BacklogError:
                continue
        return self._decoder()

    def decode(self, raw: bytes, header: bytes | None = None) -> str:
        """The JSON of a value or key, asking for its schema.

        Raises:
            Unreadable: why it cannot be decoded, also where the registry is why.
        """
        frame = self.read_frame(raw, header)
        try:
            self.prepare(frame.schema_id)
        except BacklogError as error:
            raise Unreadable(str(error)) from None
        return self._decoder().decode(raw, header)

    def is_canonical(self, raw: bytes, header: bytes | None = None) -> bool:
        """As `Decoder` says, of what was decoded before."""
        return self._decoder().is_canonical(raw, header)

    def _decoder(self) -> Decoder:
        return Decoder(self.kind, dict(self._prepared), self.encoded.spaced)
