"""Codecs of the formats, opened once in each process, and what decodes the messages of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol
from uuid import UUID

from backlogctl.config import Part, SchemaFormat, SchemaRegistry, Stream
from backlogctl.errors import BacklogError, ConfigurationError
from backlogctl.extras import explain_import
from backlogctl.json_text import write_json
from backlogctl.schemas.frames import Frame, Unreadable, find_frame_header, read_frame
from backlogctl.schemas.registry import SchemaStore, UnknownSchema, WriterSchema
from backlogctl.schemas.shapes import TEXT, Shape, merge_shapes

AVRO, PROTOBUF, JSON_SCHEMA = "avro", "protobuf", "json_schema"


class Codec(Protocol):
    """One schema that rows become bytes by, and bytes become values."""

    @property
    def required(self) -> frozenset[str]: ...

    @property
    def shape(self) -> Shape: ...

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
    message: str = ""

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

    def find_shape(self) -> Shape:
        """Of all that its schemas have; of Protobuf that of one type of each."""
        shapes = []
        for prepared in self.schemas.values():
            codec = open_codec(prepared, message=self.message, spaced=self.spaced)
            shapes.append(codec.shape)
        return merge_shapes(shapes) if shapes else TEXT

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
        self, kind: str, said: SchemaFormat, registries: Mapping[str, SchemaRegistry]
    ) -> None:
        self.kind = kind
        self.said = said
        self.store = SchemaStore(kind, said, registries)
        self._prepared: dict[int | UUID, PreparedSchema] = {}

    @property
    def is_named(self) -> bool:
        """Whether names of fields are the producer's: JSON has them, a registry knows them; a file
        that is taken for every schema may call a field by another's name."""
        is_guessed = self.said.schema_file is not None and self.said.schema_id == "auto"
        return self.kind == JSON_SCHEMA or not is_guessed

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

    def make_decoder(self, schema_ids: Iterable[int | UUID]) -> Decoder:
        """Of messages with these schemas; one that is none, or nowhere, is not known to it.

        Raises:
            RegistryFailure: the registry does not answer, or lets nobody in.
            BacklogError: why none of them is a schema of this format.
        """
        failed: BacklogError | None = None
        for schema_id in schema_ids:
            try:
                self.prepare(schema_id)
            except (UnknownSchema, ConfigurationError) as error:
                failed = error
        if failed is not None and not self._prepared:
            raise failed
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
        return Decoder(self.kind, dict(self._prepared), self.said.spaced, self.said.message or "")


def list_formats(
    stream: Stream, registries: Mapping[str, SchemaRegistry]
) -> dict[Part, StreamFormat]:
    """The parts of a stream's messages that have a schema."""
    return {
        part: StreamFormat(kind, said, registries)
        for part, (kind, said) in stream.part_formats.items()
    }


@dataclass(frozen=True, slots=True)
class Decoded:
    """A key or value for people: its JSON, or None; `told` is its schema, or why there is none.
    `is_named`: its fields have the names that its producer meant."""

    text: str | None
    told: str
    is_named: bool = True


@dataclass(slots=True)
class PartDecoder:
    """Decodes a few messages of a stream; a registry that does not answer is asked once."""

    formats: Mapping[Part, StreamFormat]
    _failed: dict[tuple[Part, int | UUID], str] = field(default_factory=dict, init=False)

    def decode(
        self, part: Part, raw: bytes | None, headers: Sequence[tuple[str, bytes | None]]
    ) -> Decoded | None:
        """None where this part has no schema, or the message not this part."""
        its = self.formats.get(part)
        if its is None or raw is None:
            return None
        header = find_frame_header(dict(headers), key=part == "key")
        try:
            frame = its.read_frame(raw, header)
        except Unreadable as error:
            return Decoded(None, f"not decoded: {error}")
        asked = (part, frame.schema_id)
        if asked in self._failed:
            return Decoded(None, self._failed[asked])
        try:
            its.prepare(frame.schema_id)
            return Decoded(its.decode(raw, header), frame.describe(), its.is_named)
        except Unreadable as error:
            return Decoded(None, f"not decoded: {error}")
        except (BacklogError, ImportError) as error:
            told = explain_import(error) or error
            self._failed[asked] = f"not decoded: {told}"
            return Decoded(None, self._failed[asked])
