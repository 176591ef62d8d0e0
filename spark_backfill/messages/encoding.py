"""Keys and values with a schema: which schema, and their bytes, made by partition in Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812

from backlogctl.clock import Deadline
from backlogctl.config import Encoded, Part, SchemaRegistry, Stream
from backlogctl.errors import BacklogError, ConfigurationError, Refused
from backlogctl.formats import format_plural
from backlogctl.kafka.peek import peek_at
from backlogctl.schemas.codecs import (
    PROTOBUF,
    PreparedSchema,
    StreamFormat,
    list_formats,
    open_codec,
)
from backlogctl.schemas.frames import (
    KEY_HEADER,
    VALUE_HEADER,
    Frame,
    Unfit,
    Unreadable,
    find_frame_header,
)
from backlogctl_delivery import stamps

if TYPE_CHECKING:
    from backlogctl.spark_backfill.comparison import Decode, LogMessage, RebuiltMessage
    from backlogctl.values import OffsetRange

# The typed row, before it is bytes.
ROWS: Mapping[Part, str] = {"key": "__key_row", "value": "__value_row"}
_SECONDS = 30.0
# Tombstones, control records and our own messages may lie between a loss and its neighbour.
_LOOKED_AT = 20


@dataclass(frozen=True, slots=True)
class Encoder:
    """How one part of a stream's messages becomes bytes.

    Attributes:
        unsure: why the lost messages' schema is not known; "" where it is.
    """

    part: Part
    format: StreamFormat
    encoded: Encoded
    prepared: PreparedSchema
    frame: Frame
    unsure: str = ""

    def describe(self) -> str:
        """For people."""
        auto = self.encoded.schema_id == "auto"
        whose = "that of the messages beside the loss" if auto else "as configured"
        return f"{self.part}: {self.format.kind}, {self.frame.describe()}, {whose}"

    def to_header(self) -> tuple[str, bytes] | None:
        """The header that names the schema, where no prefix does."""
        raw = self.frame.to_header()
        return None if raw is None else (KEY_HEADER if self.part == "key" else VALUE_HEADER, raw)

    def with_frame(self, frame: Frame) -> Encoder:
        """The same with another schema.

        Raises:
            RegistryFailure, ConfigurationError: there is none.
        """
        return replace(self, frame=frame, prepared=self.format.prepare(frame.schema_id))

    def find_frame(
        self, raw: bytes | None, headers: Sequence[tuple[str, bytes | None]]
    ) -> Frame | None:
        """The frame of a message's part; None where it has none."""
        header = find_frame_header(dict(headers), key=self.part == "key")
        try:
            return None if raw is None else self.format.read_frame(raw, header)
        except Unreadable:
            return None

    def check_fields(self, names: Sequence[str], subject: str) -> None:
        """Raises ConfigurationError: the schema requires a field that no column gives."""
        codec = open_codec(
            self.prepared, message=self.encoded.message or "", indexes=self.frame.indexes
        )
        if lacking := sorted(codec.required - set(names)):
            raise ConfigurationError(
                f"schema {self.frame.schema_id} requires the field {lacking[0]}, and no column "
                "gives it",
                subject=subject,
                hint="name it in `columns`, or make it by `sql`",
            )
        # JSON Schema may take more than it names.
        known = codec.shape if self.format.kind != "json_schema" else ()
        if isinstance(known, Mapping) and (strange := [one for one in names if one not in known]):
            raise ConfigurationError(
                f"schema {self.frame.schema_id} has no field {strange[0]}",
                subject=subject,
                hint=f"its fields are {', '.join(known)}",
            )


def render_row(encoded: Encoded) -> str:
    """Spark SQL of the typed row."""
    from backlogctl.spark_backfill.spark.frames import quote, quote_column

    if encoded.sql is not None:
        return encoded.sql
    fields = (f"{quote(name)}, {quote_column(name)}" for name in encoded.columns or ())
    return f"named_struct({', '.join(fields)})"


def choose_encoders(
    stream: Stream,
    registries: Mapping[str, SchemaRegistry],
    client_properties: Mapping[str, str],
    ranges: Sequence[OffsetRange],
) -> dict[Part, Encoder]:
    """The encoders of the lost messages: by the schema of those that survive beside the loss.

    Raises:
        Refused: messages before and after it have different schemas, or none shows one.
        ConfigurationError, RegistryFailure: a schema is wrong, or cannot be had.
        KafkaFailure: the topic could not be read.
    """
    made = [
        (part, its, its.said)
        for part, its in list_formats(stream, registries).items()
        if isinstance(its.said, Encoded)
    ]
    if not made:
        return {}
    before, after = _read_neighbours(stream, client_properties, ranges)
    return {part: _choose(part, its, said, stream, before, after) for part, its, said in made}


Message = tuple[bytes | None, bytes | None, Mapping[str, bytes | None]]  # key, value, headers


def _read_neighbours(
    stream: Stream, properties: Mapping[str, str], ranges: Sequence[OffsetRange]
) -> tuple[list[Message | None], list[Message | None]]:
    """The last message before each loss, and the first behind it; None where none survives."""
    limit = Deadline(_SECONDS)
    before: list[Message | None] = []
    after: list[Message | None] = []
    for item in ranges:
        sides = []
        for start in (max(0, item.start - _LOOKED_AT), item.end):
            starts = {item.partition: start}
            found = peek_at(properties, stream.topic, starts, _LOOKED_AT, limit)
            sides.append(
                [
                    (one.offset, (one.key, one.value, dict(one.headers)))
                    for one in found.get(item.partition, ())
                    if one.value is not None and stamps.MESSAGE_ID not in dict(one.headers)
                ]
            )
        early = [message for offset, message in sides[0] if offset < item.start]
        late = [message for offset, message in sides[1] if offset >= item.end]
        before.append(early[-1] if early else None)
        after.append(late[0] if late else None)
    return before, after


def _choose(
    part: Part,
    its: StreamFormat,
    encoded: Encoded,
    stream: Stream,
    before: Sequence[Message | None],
    after: Sequence[Message | None],
) -> Encoder:
    subject = f"streams.{stream.name}.source.message.{part}"
    early, late = (_read_frames(part, its, side, subject) for side in (before, after))
    shown = list(dict.fromkeys(frame for frame in (*early, *late) if frame is not None))
    ids = list(dict.fromkeys(frame.schema_id for frame in shown))
    _require_one_form(shown, encoded, subject)
    fixed, unsure = encoded.schema_id, ""
    if fixed == "auto":
        if not ids:
            raise Refused(
                "no message survives beside the loss that shows the schema of the lost ones",
                subject=subject,
                hint="say it: `schema_id: NUMBER`, as the registry has it",
            )
        if len(ids) > 1:
            raise Refused(
                f"the schema changed around the loss: messages beside it have {_join(ids)}, and "
                "which the lost ones had is not known",
                subject=subject,
                hint=f"say which they get: `schema_id: {ids[-1]}`; the plan is `short` then",
            )
        schema_id = ids[0]
    else:
        schema_id = fixed
    if set(ids) != {schema_id}:
        told = (
            f"those beside the loss have {_join(ids)}" if ids else "none survives beside the loss"
        )
        unsure = f"schema {schema_id} of the {part}s is said by the configuration, and {told}"
    elif None in early:
        unsure = _find_doubt(part, its, encoded, stream, schema_id)
    elif None in late:
        unsure = (
            f"no {part} behind the loss survives: the last lost ones may have had a newer schema"
        )
    frame = _make_frame(schema_id, shown, its, subject)
    made = Encoder(part, its, encoded, its.prepare(schema_id), frame, unsure)
    return _name_type(made)


def _require_one_form(shown: Sequence[Frame], encoded: Encoded, subject: str) -> None:
    """Which of several each lost message had, nothing tells."""
    is_named = encoded.message is not None
    forms = {
        replace(one, schema_id=0, indexes=() if is_named else one.indexes): one for one in shown
    }
    if len(forms) > 1:
        told = " and ".join(one.describe() for one in forms.values())
        raise Refused(
            f"messages beside the loss are framed in several ways: {told}",
            subject=subject,
            hint="producers of several kinds write this topic: rebuild what each of them lost as a "
            "stream of its own, with `where` and, of Protobuf, `message`",
        )


def _read_frames(
    part: Part, its: StreamFormat, side: Sequence[Message | None], subject: str
) -> list[Frame | None]:
    found: list[Frame | None] = []
    for message in side:
        key, value, headers = message or (None, None, {})
        raw = key if part == "key" else value
        if raw is None:
            found.append(None)
            continue
        try:
            header = find_frame_header(headers, key=part == "key")
            found.append(its.read_frame(raw, header))
        except Unreadable as error:
            raise ConfigurationError(
                f"a message beside the loss is no {its.kind} of a serializer: {error}",
                subject=subject,
                hint="say how its producer writes it: docs/formats.md",
            ) from None
    return found


def _find_doubt(
    part: Part, its: StreamFormat, encoded: Encoded, stream: Stream, schema_id: int | UUID
) -> str:
    """Messages before the loss are gone: could the first lost ones have had an older schema?"""
    if encoded.registry is None:
        return (
            f"no {part} before the loss survives, and a schema's file does not tell whether it "
            "changed"
        )
    subject = encoded.subject or f"{stream.topic}-{part}"
    older = its.store.open().list_older(subject, schema_id)
    if older is None:
        return (
            f"no {part} before the loss survives, and the registry does not tell all that "
            f"{subject} had before schema {schema_id}: it has no such subject (`subject` names "
            "another), or versions were deleted for good"
        )
    if not older:
        return ""
    return (
        f"no {part} before the loss survives, and {subject} has older schemas ({_join(older)}) "
        f"than {schema_id}: the lost ones may have had one of them"
    )


def _make_frame(
    schema_id: int | UUID, shown: Sequence[Frame], its: StreamFormat, subject: str
) -> Frame:
    """As the log's messages are framed, with this schema."""
    indexes = (0,) if its.kind == PROTOBUF else ()
    if shown:
        like = shown[-1]
        if isinstance(like.schema_id, UUID) is not isinstance(schema_id, UUID):
            raise ConfigurationError(
                f"messages in the log name their schema as {like.schema_id}, not as {schema_id}",
                subject=f"{subject}.{its.kind}.schema_id",
                hint="write it as they do",
            )
        return replace(like, schema_id=schema_id)
    if isinstance(schema_id, UUID):
        raise Refused(
            "no message survives that shows whether a GUID stands in a header or before the bytes",
            subject=subject,
        )
    return Frame(schema_id, indexes)


def _name_type(made: Encoder) -> Encoder:
    """The indexes of the type that the configuration names."""
    message = made.encoded.message
    if made.format.kind != PROTOBUF or message is None:
        return made
    codec: Any = open_codec(made.prepared, message=message, indexes=made.frame.indexes)
    return replace(made, frame=replace(made.frame, indexes=codec.indexes))


def _join(ids: Iterable[int | UUID]) -> str:
    return ", ".join(map(str, ids))


# Encoding, in Spark's Python workers: no registry is asked there.


@dataclass(frozen=True, slots=True)
class _Work:
    """What a worker needs of an encoder."""

    part: Part
    prepared: PreparedSchema
    frame: Frame
    message: str
    spaced: bool


def encode_parts(built: DataFrame, encoders: Mapping[Part, Encoder]) -> DataFrame:
    """Replaces the typed rows of `ROWS` by the bytes of `key` and `value`; what the schema does not
    take has a `reason`."""
    rows = {ROWS[part] for part in encoders}
    kept = [one for one in built.schema.fields if one.name not in rows]
    made = [T.StructField(part, T.BinaryType()) for part in encoders]
    work = [
        _Work(
            part,
            one.prepared,
            one.frame,
            one.encoded.message or "",
            one.encoded.spaced,
        )
        for part, one in encoders.items()
    ]

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _encode_batch(batch, work)

    return built.mapInArrow(run, T.StructType([*kept, *made]))


def _encode_batch(batch: pa.RecordBatch, work: Sequence[_Work]) -> pa.RecordBatch:
    reasons = batch.column("reason").to_pylist()
    columns = {name: batch.column(name) for name in batch.schema.names}
    for one in work:
        rows = columns.pop(ROWS[one.part]).to_pylist()
        columns[one.part] = pa.array(_encode_rows(rows, reasons, one), pa.binary())
    columns["reason"] = pa.array(reasons, pa.string())
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _encode_rows(rows: Sequence[Any], reasons: list[str | None], work: _Work) -> list[bytes | None]:
    """The bytes; notes in `reasons` why a row has none."""
    codec = open_codec(
        work.prepared, message=work.message, indexes=work.frame.indexes, spaced=work.spaced
    )
    encode, wrap = codec.encode, work.frame.wrap
    found: list[bytes | None] = []
    for at, row in enumerate(rows):
        if row is None or reasons[at] is not None:
            found.append(None)
            continue
        try:
            found.append(wrap(encode(row)))
        except Unfit as error:
            reasons[at] = f"{work.part}: {error}"
            found.append(None)
    return found


# The proof: each survivor by its own schema.

_MOST_SCHEMAS = 5


def share_by_schema(
    messages: Sequence[tuple[bytes, bytes | None, Sequence[tuple[str, bytes | None]]]],
    encoders: Mapping[Part, Encoder],
) -> Iterator[tuple[list[bytes], Mapping[Part, Encoder]]]:
    """Identities of surviving messages by the schema of their value, each with what encodes it: a
    row is compared with what its producer's schema of that time gives.

    Args:
        messages: identity, value and headers.
    """
    encoder = encoders.get("value")
    if encoder is None:
        if messages:
            yield [identity for identity, _, _ in messages], encoders
        return
    shared: dict[Frame | None, list[bytes]] = {}
    for identity, value, headers in messages:
        shared.setdefault(encoder.find_frame(value, headers), []).append(identity)
    # What cannot be had is compared with the plan's own schema, and differs by that.
    rest: list[bytes] = []
    commonest = sorted(shared, key=lambda frame: -len(shared[frame]))
    for number, frame in enumerate(commonest):
        made = None
        if frame is not None and frame != encoder.frame and number < _MOST_SCHEMAS:
            with suppress(BacklogError):
                made = encoder.with_frame(frame)
        if made is None:
            rest += shared[frame]
        else:
            yield shared[frame], {**encoders, "value": made}
    if rest:
        yield rest, encoders


def count_returns(messages: Iterable[LogMessage], encoders: Mapping[Part, Encoder]) -> int:
    """How often a schema comes back in a partition after another one was there: producers of
    several releases write at the same time, so neighbours do not tell what lay between them."""
    in_order = sorted(messages, key=lambda one: (one.partition, one.offset))
    return sum(_count_returns(in_order, encoder) for encoder in encoders.values())


def _count_returns(in_order: Iterable[LogMessage], encoder: Encoder) -> int:
    found, last = 0, dict[int, Frame]()
    left: set[tuple[int, Frame]] = set()
    for one in in_order:
        raw = one.key if encoder.part == "key" else one.value
        frame = encoder.find_frame(raw, one.headers)
        if frame is None or frame == last.get(one.partition):
            continue
        if one.partition in last:
            left.add((one.partition, last[one.partition]))
        found += (one.partition, frame) in left
        last[one.partition] = frame
    return found


def describe_unsure(encoders: Iterable[Encoder], returns: int) -> str:
    """Why the schemas of the lost messages are not known; "" where they are.

    Args:
        returns: as `count_returns` says.
    """
    told = [one.unsure for one in encoders if one.unsure]
    if returns:
        told.append(
            "producers with several schemas write at the same time: in a sample of survivors a "
            f"schema comes back after another one {format_plural(returns, 'time')}, so which one "
            "each lost message had is not known"
        )
    return "; ".join(told)


def make_decoder(encoder: Encoder | None) -> Decode | None:
    """What tells how two values with a schema differ; None where values have none."""
    if encoder is None:
        return None
    its = encoder.format

    def decode(log: LogMessage, made: RebuiltMessage) -> tuple[bytes, bytes] | str:
        assert log.value is not None
        assert made.value is not None
        one, two = (encoder.find_frame(side.value, side.headers) for side in (log, made))
        if one is None or two is None:
            return f"is no {its.kind} of a serializer {'in the log' if one is None else 'rebuilt'}"
        if one != two:
            return f"has {one.describe()} in the log, {two.describe()} rebuilt"
        header = find_frame_header(dict(log.headers), key=False)
        try:
            texts = [its.decode(raw, header).encode() for raw in (log.value, made.value)]
        except Unreadable as error:
            return f"cannot be decoded: {error}"
        if texts[0] == texts[1] and not its.is_canonical(log.value, header):
            return (
                "holds the same fields, but its producer writes them otherwise: the library here "
                "does not write the log's bytes even for what they hold"
            )
        return texts[0], texts[1]

    return decode
