"""Streams: a topic, the group that must read it, its source table and its rules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import time, timedelta
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from backlogctl.clock import OffPeakWindow
from backlogctl.config.base import (
    LATER,
    Duration,
    GroupId,
    Label,
    Names,
    Section,
    Text,
    TopicName,
    Zone,
    fail_at,
)
from backlogctl.config.consumers import Consumers, Expand
from backlogctl.config.formats import Formats, Part, ReadFormats, SchemaFormat, find_formats
from backlogctl.config.sections import Positive
from backlogctl.values import DiskFloor
from backlogctl_delivery import stamps
from backlogctl_delivery.stamps import EVENT_ID

# How messages that exist are put back: dead letters, how often, and rehearsals.


class DeadLetterHeaders(Section):
    """Headers that say where a dead letter came from, and why, for a framework of your own.

    Those of Spring, Kafka Connect, Kafka Streams, share groups, SmallRye, Karafka and Arroyo are
    known (`docs/runbook-redrive.md`).
    """

    topic: Text | None = Field(default=None, description="Holds the original topic, as text.")
    partition: Text | None = Field(
        default=None, description="Holds the original partition, as text or a big-endian integer."
    )
    offset: Text | None = Field(
        default=None, description="Holds the original offset, as text or a big-endian integer."
    )
    error: Text | None = Field(default=None, description="Holds the error, as text.")
    strip: tuple[Text, ...] = Field(
        default=(),
        description="Glob patterns of headers that a retry adds and that are not sent again.",
    )


class Redrive(Section):
    """How messages that exist are put back."""

    dead_letters: DeadLetterHeaders = Field(
        default_factory=DeadLetterHeaders,
        description="Headers of dead letters of a framework of your own.",
    )
    max_replays: Annotated[int, Field(gt=0)] = Field(
        default=3,
        description="A message that was put back so often is not put back again, unless "
        "`--allow replays` says so.",
    )
    rehearsal_keep: Duration = Field(
        default=timedelta(hours=24),
        description="How long a rehearsal's topic keeps its messages; the next plan or run of the "
        "stream deletes the topic after that.",
    )


# `source: {outbox: NAME}`: an outbox as the source of a rebuild, written out as any other source.
#
# Nothing else knows that it is one.

OUTBOX = "outbox"
# What the user may say beside it.
_BESIDE = (OUTBOX, "consumed", "edge", "margin")
# Of `message`: what others add to it on its way.
_IGNORED = {"ignore_headers", "ignore_fields"}


def expand_outbox(topic: object, given: Mapping[str, object]) -> dict[str, object]:
    """The section that `given` stands for.

    A row's time is `sent_at`: when Kafka acknowledged it, however late that was marked, and
    indexed. `created_at` may lie days before the message, where it was parked or Kafka was away.
    Rows that are not sent are not lost: their sender sends them.

    Rows of a partition stand in the order of their offsets, which Kafka told the sender; of a row
    without one nothing is known but its time.

    Raises:
        PydanticCustomError: `outbox` names nothing, or a key stands beside it that follows from it.
    """
    database = given[OUTBOX]
    if not isinstance(database, str):
        raise fail_at(("source", OUTBOX), "must be a name under `sources`")
    message = given.get("message")
    ignored = message if isinstance(message, Mapping) and message.keys() <= _IGNORED else {}
    for key in given:
        if key not in _BESIDE and not (key == "message" and ignored):
            raise fail_at(("source", key), f"follows from `{OUTBOX}`: leave one of the two out")
    made = {
        "database": database,
        "table": "backlog_outbox",
        "primary_key": ["id"],
        # A topic that is none is refused as that.
        "where": {"topic": topic if isinstance(topic, str) else "", "state": "sent"},
        "time_column": "sent_at",
        "time_unit": "ms",
        "sent_time": True,
        "order_by": ["sent_offset", "id"],
        "mutable": False,
        "message": {
            "key": "message_key",
            "partition": "sent_partition",
            "value": {"column": "value"},
            "tombstones": True,
            "header_list": "headers",
            "headers": {EVENT_ID: "message_id"},
            **ignored,
        },
        "identity": {"row": "message_id", "message": f"header:{EVENT_ID}"},
        "stale": "events",
    }
    return {**made, **{name: value for name, value in given.items() if name != "message"}}


class Expr(Section):
    """A column, or an SQL expression over the table's columns; exactly one of them."""

    column: Text | None = Field(default=None, description="A column of the table.")
    sql: Text | None = Field(default=None, description="An SQL expression.")

    @model_validator(mode="before")
    @classmethod
    def _read_column(cls, value: object) -> object:
        return {"column": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_one(self) -> Expr:
        if (self.column is None) == (self.sql is None):
            raise ValueError('must be a column, or {sql: "..."}')
        return self


class Key(Formats, Expr):
    """A column, an SQL expression, or a format with a schema; exactly one of them."""

    @model_validator(mode="after")
    def _check_one(self) -> Key:
        ways = [self.column, self.sql, self.avro, self.protobuf, self.json_schema]
        if len(ways) - ways.count(None) != 1:
            raise ValueError('must be a column, {sql: "..."}, or one of {avro: ...} and the like')
        return self


class Value(Formats):
    """A message's value, built in exactly one way."""

    json_columns: Names | None = Field(
        default=None,
        validation_alias="json",
        serialization_alias="json",
        description="Columns that make a JSON object, keys in this order, nulls kept.",
    )
    column: Text | None = Field(
        default=None, description="A column that holds the value's bytes or text."
    )
    sql: Text | None = Field(default=None, description="An SQL expression that makes the value.")

    @model_validator(mode="after")
    def _check_one(self) -> Value:
        ways = [self.json_columns, self.column, self.sql]
        ways += [self.avro, self.protobuf, self.json_schema]  # type: ignore[list-item]
        if len(ways) - ways.count(None) != 1:
            raise ValueError(
                "must be one of {json: [...]}, {column: ...}, {sql: ...}, {avro: ...}, "
                "{protobuf: ...} and {json_schema: ...}"
            )
        return self


class MessageSection(Section):
    """How a message is built from a row."""

    key: Key | None = Field(
        default=None,
        description='The key: a column, {sql: "..."}, or a format with a schema, such as '
        "{avro: ...}; without it messages have no key.",
    )
    partition: Text | None = Field(
        default=None,
        description="A column that says which partition a message without a key was sent to, where "
        "the table does. Without it such messages fill what the gaps lack.",
    )
    value: Value = Field(
        description="The value: {json: [columns]}, {column: ...}, {sql: ...}, or a format with a "
        "schema: {avro: ...}, {protobuf: ...}, {json_schema: ...}."
    )
    tombstones: bool = Field(
        default=False,
        description="Whether a value that is NULL is sent as a tombstone. Without it such a row is "
        "in quarantine.",
    )
    header_list: Expr | None = Field(
        default=None,
        description='Headers that each row has of its own: a column, or `{sql: "..."}`, with a '
        "JSON list of `[name, value in base64 or null]`, in their order. Those of "
        "`headers` follow.",
    )
    headers: dict[str, Text] = Field(
        default_factory=dict, description="Header names and the SQL expressions of their values."
    )
    ignore_headers: tuple[Text, ...] = Field(
        default=(),
        description="Glob patterns of headers, such as `request-*`, that are left out where a "
        "rebuilt message is compared with the log's: a producer adds them, and no row has them. "
        "Trace headers that only the log has are always left out. See "
        "[messages](messages.md#what-only-the-producer-knows).",
    )
    ignore_fields: tuple[Text, ...] = Field(
        default=(),
        description="Fields of JSON values that are left out of that comparison: the path of each "
        "from the outermost object, such as `sent_at` or `meta.trace_id`; it goes through lists.",
    )

    @field_validator("ignore_headers", "ignore_fields", mode="before")
    @classmethod
    def _check_list(cls, value: object) -> object:
        if isinstance(value, str):
            raise ValueError(f"must be a list: [{value}]")
        return value

    @field_validator("ignore_fields")
    @classmethod
    def _check_paths(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for path in value:
            if not all(path.split(".")):
                raise ValueError(
                    f"`{path}` is no path: write a field's name, or names with a dot between them"
                )
            if "*" in path:
                raise ValueError(f"`{path}` is a pattern: write each field's own path")
        return value

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if name in stamps.ALL:
                raise ValueError(f"`{name}` is a header that backlogctl writes itself")
        return value


class Identity(Section):
    """How a row and its message are known to belong together."""

    row: Expr = Field(description='Of a row: a column, or {sql: "..."}.')
    message: str = Field(description="Of a message: `key` or `header:NAME`.")

    @field_validator("message")
    @classmethod
    def _check_message(cls, value: str) -> str:
        if value.startswith("value:"):
            raise ValueError(f"`value:` {LATER}")
        if value != "key" and not re.fullmatch(r"header:\S.*", value):
            raise ValueError("must be `key` or `header:NAME`")
        return value

    @property
    def header(self) -> str | None:
        """The header's name; None where the key identifies a message."""
        return self.message.removeprefix("header:") if self.message != "key" else None


class Consumed(Section):
    """The consumer's own table: rows it names were handled, so their message was not lost."""

    database: Label = Field(description="A name under `sources`.")
    table: Text = Field(description="The table, `name` or `schema.name`.")
    column: Text = Field(description="The column that holds the row's identity.")


def _check_where_value(value: object) -> object:
    if not isinstance(value, str | int):
        raise ValueError("must be text, a whole number, true or false")
    return value


WhereValue = Annotated[bool | int | str, BeforeValidator(_check_where_value)]


class StreamSource(Section):
    """The table that a stream's messages are rebuilt from, or an outbox."""

    outbox: Label | None = Field(
        default=None,
        # What it stands for is dumped: its own keys.
        exclude=True,
        description="A name under `sources`: the database of an outbox that sends the stream's "
        "messages. All else follows from it; only `consumed`, `edge`, `margin` and, in `message`, "
        "`ignore_headers` and `ignore_fields` may stand beside it. See "
        "[outbox](outbox.md#as-the-source-of-a-rebuild).",
    )
    database: Label = Field(description="A name under `sources`.")
    table: Text = Field(description="The table, `name` or `schema.name`.")
    primary_key: Names = Field(description="The key's column or columns.")
    where: dict[Text, WhereValue] = Field(
        default_factory=dict,
        description="Which rows of the table are the stream's: columns and the value that each "
        "has. The database compares, so that no other row is read. Without it all.",
    )
    time_column: Text = Field(description="When the row's message was sent, or the row changed.")
    time_unit: Literal["s", "ms"] | None = Field(
        default=None,
        description="What a time column that holds whole numbers counts since 1970: seconds or "
        "milliseconds.",
    )
    sent_time: bool = Field(
        default=False,
        description="Whether the time is that of a mark made after the message was sent: NULL "
        "until then, and later than the message by `margin` at most. Without it "
        "the time is set before.",
    )
    order_by: Names = Field(
        default=(),
        validate_default=False,
        description="Order of messages within a partition. Without it the time column. Rows that "
        "it leaves equal have no order: where a loss begins or ends among them, all of them are "
        "uncertain. A primary key that is counted up in the order of messages belongs here.",
    )
    mutable: bool = Field(
        default=True, description="Whether rows change after their message was sent."
    )
    margin: Duration = Field(
        default=timedelta(minutes=10),
        description="By how much the gap's time bounds are widened, for rows committed late; with "
        "`sent_time`, for rows marked late.",
    )
    message: MessageSection = Field(description="How a message is built from a row.")
    identity: Identity = Field(description="How a row and its message belong together.")
    consumed: Consumed | None = Field(
        default=None,
        description="Evidence, where there is any: the consumer's own table. It does not tell "
        "whether a row changed after it was handled.",
    )
    edge: Literal["include", "exclude"] | None = Field(
        default=None,
        description="Rows at the edge of a loss of which it is not certain whether they were lost: "
        "`include` puts all of them back (the consumer drops repeats), `exclude` none; without it "
        "each as is most likely. They are listed in either case.",
    )
    stale: Literal["restate", "events", "refuse"] = Field(
        default="refuse",
        description="What an old message after a newer one means. `restate`: the row's current "
        "version is sent; `events`: append-only events are sent as they were; `refuse`: a keyed "
        "or compacted topic is not rebuilt.",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_order(cls, value: object) -> object:
        if not isinstance(value, Mapping) or value.get("order_by") is not None:
            return value
        rest = {name: item for name, item in value.items() if name != "order_by"}
        moment = value.get("time_column")
        return {**rest, "order_by": (moment,)} if isinstance(moment, str) else rest

    @model_validator(mode="after")
    def _check_identity(self) -> StreamSource:
        if self.identity.message == "key" and self.stale == "events":
            raise ValueError(
                "`stale: events` does not go with `identity.message: key`: events share their "
                "key, so a surviving one would hide a lost one; identify them by `header:NAME`"
            )
        if self.identity.message == "key" and self.message.key is None:
            raise ValueError("`identity.message: key` needs `message.key`")
        key = self.message.key
        if self.identity.message == "key" and key is not None and key.encoded and self.consumed:
            raise ValueError(
                "`consumed` does not go with `identity.message: key` of a key with a schema: its "
                "bytes are in no table; identify messages by `header:NAME`"
            )
        return self

    @model_validator(mode="after")
    def _check_sent_time(self) -> StreamSource:
        if self.sent_time and self.mutable:
            raise ValueError(
                "`sent_time` needs `mutable: false`: a row that changes has the time of its change"
            )
        return self

    @property
    def drift(self) -> tuple[timedelta, timedelta]:
        """How long at most a row's time lies before, and after, its message's; clocks aside."""
        none = timedelta(0)
        return (none, self.margin) if self.sent_time else (self.margin, none)


def _read_clock_time(value: object) -> object:
    if isinstance(value, time):
        return value
    if isinstance(value, str) and re.fullmatch(r"(?:[01][0-9]|2[0-3])(?::[0-5][0-9]){1,2}", value):
        return time.fromisoformat(value)
    raise ValueError('must be a time of day such as "00:30"')


ClockTime = Annotated[time, BeforeValidator(_read_clock_time)]


class OffPeak(Section):
    """Hours in which messages may be injected; they may cross midnight."""

    start: ClockTime = Field(
        validation_alias="from",
        serialization_alias="from",
        description="When the window opens, by the zone's wall clock.",
    )
    end: ClockTime = Field(
        validation_alias="to",
        serialization_alias="to",
        description="When it closes; earlier than `from` means on the next day.",
    )
    timezone: Zone = Field(description="IANA time zone, such as Europe/Berlin.")

    @model_validator(mode="after")
    def _check_length(self) -> OffPeak:
        if self.start == self.end:
            raise ValueError("`from` and `to` are the same; leave `off_peak` out to run any time")
        return self

    def window(self) -> OffPeakWindow:
        return OffPeakWindow(self.start, self.end, ZoneInfo(self.timezone))


def _check_floor(value: str) -> str:
    try:
        DiskFloor.parse(value)
    except ValueError:
        raise ValueError("must be a share or a size such as 5%, 500 MB or 20 GB") from None
    return value


FloorText = Annotated[str, AfterValidator(_check_floor)]


def _check_share(value: str) -> str:
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", value)
    if found is None or not 0 < float(found[1]) <= 100:
        raise ValueError("must be a share such as 50%")
    return value


ShareText = Annotated[str, AfterValidator(_check_share)]


class StreamLimits(Section):
    """Brakes of what a recovery writes into topics."""

    messages_per_second: Positive | None = Field(default=None, description="Rate; without it none.")
    max_live_lag: Positive | None = Field(
        default=None,
        description="The injection waits while the live group's own lag is above this.",
    )
    max_messages: Positive = Field(
        default=5_000_000, description="A plan with more messages than this is refused."
    )
    disk_free: FloorText = Field(
        default="5%",
        description="What stays free of each disk of a broker that gets messages, as a share or a "
        "size such as `20 GB`: an expansion and an injection wait before they use it up. Where "
        "brokers do not tell their disks (before Kafka 3.3, or managed) it brakes nothing.",
    )

    quota_share: ShareText | None = Field(
        default=None,
        description="How much of the `producer_byte_rate` that brokers grant the tool's user and "
        "`client.id` it may use, such as `50%`, so that others of this user are not throttled: "
        "relays and injections write no more bytes a second than that share of one broker's rate, "
        "to all brokers together, and each recovery by itself. The plan and the run ask for the "
        "quota, and do not begin where it is not told. Without it there is no such brake.",
    )

    @property
    def floor(self) -> DiskFloor:
        return DiskFloor.parse(self.disk_free)

    @property
    def share(self) -> float | None:
        """`quota_share` as a part of one."""
        return None if self.quota_share is None else float(self.quota_share.strip(" %")) / 100


class Stream(Section):
    """A topic with the group that must read it."""

    name: Label = Field(description="The stream's key under `streams`.")
    cluster: Label = Field(description="A name under `clusters`.")
    topic: TopicName = Field(description="The topic.")
    group: GroupId = Field(description="The consumer group that must read it.")
    isolation: Literal["read_committed", "read_uncommitted", "unknown"] = Field(
        default="unknown",
        description="How the group reads: its clients' `isolation.level`. Where it is unknown, lag "
        "counts to the high watermark, and a commit at the last stable offset has read all that it "
        "can.",
    )
    partitioner: Literal["murmur2", "crc32"] = Field(
        default="murmur2",
        description="How the topic's producers place keys: `murmur2` as Java clients do, `crc32` "
        "as librdkafka does by default.",
    )
    approval: Literal["named", "second_person", "auto"] = Field(
        default="named",
        description="Who approves a plan: a named person, another person than the planner, or "
        "nobody for exact and covering plans within the limits.",
    )
    auto_plan: bool = Field(
        default=False,
        description="Whether a scheduler that finds it losing messages, or finds a loss, plans a "
        "recovery by itself. The plan is approved as `approval` says.",
    )
    source: StreamSource | None = Field(
        default=None, description="The source table; without it gaps are found but not rebuilt."
    )
    consumers: Consumers | None = Field(
        default=None,
        description="How its consumers are started and stopped; an expansion needs it.",
    )
    expand: Expand = Field(
        default_factory=Expand, description="How an emergency expansion drains the backlog."
    )
    redrive: Redrive = Field(
        default_factory=Redrive, description="How messages that exist are put back."
    )
    audits: tuple[Literal["sequence", "producers", "consumed", "counts"], ...] = Field(
        default=(),
        description="What `nightly_audit` looks for in the off-peak window: docs/audits.md.",
    )
    sequence: bool = Field(
        default=False,
        description="Whether `watch` reads its new messages and looks for missing numbers of a "
        "SequencedProducer: docs/audits.md.",
    )
    mask: tuple[Text, ...] = Field(
        default=(),
        description="What is not shown of messages: names of JSON fields at any depth, "
        "`header:NAME`, `key` or `value`.",
    )
    formats: ReadFormats | None = Field(
        default=None,
        description="Formats of keys and values for filters, masks and `archive peek`, where "
        "`source` says none: [formats](formats.md).",
    )
    deliver: Literal["topic"] | None = Field(
        default=None, description="`topic` is needed by name when other groups read the topic too."
    )
    off_peak: OffPeak | None = Field(
        default=None, description="When messages may be injected; without it at any time."
    )
    limits: StreamLimits = Field(
        default_factory=StreamLimits, description="Brakes of the injection."
    )

    @model_validator(mode="before")
    @classmethod
    def _expand_source(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        source = value.get("source")
        if not isinstance(source, Mapping) or "outbox" not in source:
            return value
        return {**value, "source": expand_outbox(value.get("topic"), source)}

    @model_validator(mode="after")
    def _check_formats(self) -> Stream:
        self.part_formats  # noqa: B018 - it refuses what contradicts itself
        return self

    @property
    def part_formats(self) -> Mapping[Part, tuple[str, SchemaFormat]]:
        """The parts of its messages that have a schema: the format's name, and what is said."""
        return find_formats(None if self.source is None else self.source.message, self.formats)

    def fingerprint(self) -> dict[str, Any]:
        """What the plan records of the stream: plain JSON, with the file's keys, no secrets."""
        return self.model_dump(mode="json")
