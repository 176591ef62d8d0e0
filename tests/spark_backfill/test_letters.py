"""Dead letters: where each came from, which of them are one message, and what is not sent again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from backlogctl.config.streams import DeadLetterHeaders
from backlogctl.spark_backfill.existing.labels import distinguish_letters
from backlogctl.spark_backfill.existing.messages import ORIGINALS_SCHEMA
from backlogctl.spark_backfill.existing.origins import FAMILIES, strip_headers, trace_letters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

Header = tuple[str, bytes | None]
TOPIC, TOPIC_ID = "orders", "AAAAAAAAAAAAAAAAAAAAAA"
NOW = 1_760_000_000_000


def write(raw: bytes | str | None) -> str:
    if isinstance(raw, str):
        return "'" + raw + "'"
    return "CAST(NULL AS binary)" if raw is None else f"X'{raw.hex()}'"


def make_letters(
    spark: SparkSession,
    letters: Sequence[Sequence[Header]],
    key: bytes | None = b"k",
    value: bytes | None = b"v",
) -> DataFrame:
    """Letters of partition 0, by offset."""
    rows = []
    for offset, headers in enumerate(letters):
        pairs = ", ".join(
            f"named_struct('name', {write(name)}, 'value', {write(raw)})" for name, raw in headers
        )
        listed = f"array({pairs})" if headers else "array()"
        rows.append(
            f"SELECT 0 AS source_partition, {offset}L AS source_offset, {NOW}L AS timestamp, "
            f"0Y AS timestamp_type, {write(key)} AS key, {write(value)} AS value, "
            f"CAST({listed} AS array<struct<name:string,value:binary>>) AS headers"
        )
    return spark.sql(" UNION ALL ".join(rows))


def trace(
    spark: SparkSession,
    letters: Sequence[Sequence[Header]],
    own: DeadLetterHeaders | None = None,
    content: tuple[bytes | None, bytes | None] = (b"k", b"v"),
    **options: Any,
) -> list[Row]:
    frame = make_letters(spark, letters, *content)
    assert {field.name for field in frame.schema} == {
        part.split()[0] for part in ORIGINALS_SCHEMA.split(", ")
    }
    traced = trace_letters(frame, own or DeadLetterHeaders(), TOPIC, TOPIC_ID, **options)
    return traced.orderBy("source_offset").collect()


def describe(row: Row) -> tuple[Any, ...]:
    return row["origin_topic"], row["home_partition"], row["home_offset"], row["sent_at"]


def big(number: int, size: int) -> bytes:
    return number.to_bytes(size, "big")


def text(number: int) -> bytes:
    return str(number).encode()


def spring(topic: str, partition: int, offset: int, at: int, error: str) -> list[Header]:
    return [
        ("kafka_dlt-exception-fqcn", error.encode()),
        ("kafka_dlt-original-topic", topic.encode()),
        ("kafka_dlt-original-partition", big(partition, 4)),
        ("kafka_dlt-original-offset", big(offset, 8)),
        ("kafka_dlt-original-timestamp", big(at, 8)),
    ]


def place(prefix: str, topic: str, partition: int, offset: int) -> list[Header]:
    """As text."""
    return [
        (f"{prefix}topic", topic.encode()),
        (f"{prefix}partition", text(partition)),
        (f"{prefix}offset", text(offset)),
    ]


# What each framework adds, as its source has it; and what is read of it.
ADDED: dict[str, tuple[list[Header], int | None, str]] = {
    "spring": (spring(TOPIC, 2, 300, 77, "a.Boom"), 77, "a.Boom"),
    "retryable": (
        [
            ("kafka_original-topic", TOPIC.encode()),
            ("kafka_original-partition", big(2, 4)),
            ("kafka_original-offset", big(300, 8)),
            ("kafka_original-timestamp", big(77, 8)),
            ("kafka_original-timestamp-type", b"CreateTime"),
            ("kafka_dlt-original-consumer-group", b"g"),
            ("kafka_key-exception-fqcn", b"a.Key"),
            ("kafka_key-exception-message", b"bad key"),
            ("retry_topic-attempts", big(1, 4)),
            ("retry_topic-attempts", big(2, 4)),
        ],
        77,
        "a.Key",
    ),
    "connect": (
        [
            *place("__connect.errors.", TOPIC, 2, 300),
            ("__connect.errors.class.name", b"a.Converter"),
            ("__connect.errors.exception.class.name", b"a.Boom"),
        ],
        None,
        "a.Boom",
    ),
    "streams": (
        [
            ("__streams.errors.exception", b"a.Boom: bad"),
            *place("__streams.errors.", TOPIC, 2, 300),
        ],
        None,
        "a.Boom",
    ),
    "share group": (
        [
            *place("__dlq.errors.", TOPIC, 2, 300),
            ("__dlq.errors.group", b"g"),
            ("__dlq.errors.delivery.count", b"5"),
            ("__dlq.errors.message", b"Offset rejected by client."),
        ],
        None,
        "unknown",
    ),
    "smallrye": (
        [
            ("dead-letter-exception-class-name", b"a.Wrapper"),
            ("dead-letter-cause-class-name", b"a.Boom"),
            *place("dead-letter-", TOPIC, 2, 300),
        ],
        None,
        "a.Boom",
    ),
    "smallrye retry": (
        [
            ("delayed-retry-exception-class-name", b"a.Boom"),
            *place("delayed-retry-", TOPIC, 2, 300),
            ("delayed-retry-count", b"1"),
            ("delayed-retry-original-timestamp", b"77"),
        ],
        77,
        "a.Boom",
    ),
    "karafka": (
        [
            *place("source_", TOPIC, 2, 300),
            ("source_consumer_group", b"g"),
            ("source_attempts", b"3"),
            ("source_trace_id", b"t"),
        ],
        None,
        "unknown",
    ),
    "karafka before": (
        [
            *place("original_", TOPIC, 2, 300),
            ("original_consumer_group", b"g"),
            ("original_key", b"k"),
            ("original_attempts", b"3"),
        ],
        None,
        "unknown",
    ),
    "spring cloud stream": (
        [
            ("x-original-topic", TOPIC.encode()),
            ("x-original-partition", big(2, 4)),
            ("x-original-offset", big(300, 8)),
            ("x-original-timestamp", big(77, 8)),
            ("x-exception-fqcn", b"a.Boom"),
        ],
        77,
        "a.Boom",
    ),
}
FIRST, SECOND = (TOPIC, 2, 300), (f"{TOPIC}-dlt", 0, 4)


def test_origins_of_all_families(spark: SparkSession) -> None:
    """Place, time and error; and of what it added nothing is left."""
    own: list[Header] = [("trace", b"1"), ("source_topic", b"erp"), ("original_price", b"9")]
    letters = [[*own, *headers] for headers, _, _ in ADDED.values()]
    assert len(letters) == len(FAMILIES)
    # An application's header of Karafka's name is Karafka's beside its offset.
    letters[7] = letters[7][len(own) :]
    for name, row in zip(ADDED, trace(spark, letters), strict=True):
        _, at, error = ADDED[name]
        assert describe(row) == (*FIRST, at), name
        assert (row["error_class"], row["hops"], row["key"]) == (error, None, b"k"), name
        assert row["is_timed"] == (name in ("connect", "streams"))
    bare = strip_headers(make_letters(spark, letters), DeadLetterHeaders())
    for name, row in zip(ADDED, bare.orderBy("source_offset").collect(), strict=True):
        left = [(header["name"], bytes(header["value"])) for header in row["headers"]]
        assert left == ([] if name == "karafka" else own), name


@pytest.mark.parametrize("family", ["spring", "connect", "streams", "smallrye"])
def test_fault_105_all_of_a_letter_is_of_one_failure(spark: SparkSession, family: str) -> None:
    """It failed in the topic, and again among its dead letters."""
    again: list[Header]
    if family == "spring":
        again = spring(*SECOND, 99, "a.Later")
    else:
        prefix = {"smallrye": "dead-letter-"}.get(family, f"__{family}.errors.")
        name = {
            "connect": "__connect.errors.exception.class.name",
            "streams": "__streams.errors.exception",
            "smallrye": "dead-letter-exception-class-name",
        }[family]
        again = [*place(prefix, *SECOND), (name, b"a.Later")]
    headers, at, error = ADDED[family]
    if family == "smallrye":  # it writes its own before those that are there
        headers = [item for item in headers if "cause" not in item[0]]
        error = "a.Wrapper"
    both = [*again, *headers] if family == "smallrye" else [*headers, *again]
    (row,) = trace(spark, [both])
    assert describe(row) == (*FIRST, at)
    assert row["error_class"] == error
    assert row["hops"] == f"{TOPIC} → {TOPIC}-dlt"


def test_fault_105_the_hop_that_names_the_topic(spark: SparkSession) -> None:
    """Wherever it stands, and in whichever family; what belongs to no one hop is not known."""
    mine, other = spring(*FIRST, 77, "a.Boom"), spring("payments", 0, 1, 11, "a.Other")
    stripped = [item for item in other if "exception" not in item[0]]
    lacking = [item for item in other if "offset" not in item[0]]
    retried = [*ADDED["retryable"][0], *spring(f"{TOPIC}-dlt", 0, 1, 99, "a.Later")]
    twice = [*mine, *ADDED["connect"][0]]  # one failure, told by two
    rows = trace(spark, [[*other, *mine], [*stripped, *mine], [*lacking, *mine], retried, twice])
    assert [describe(row) for row in rows] == [
        (*FIRST, 77),
        (*FIRST, 77),
        (TOPIC, None, None, 77),
        *[(*FIRST, 77)] * 2,
    ]
    assert [row["error_class"] for row in rows] == [
        *["a.Boom", "unknown", "a.Boom", "a.Key", "a.Boom"]
    ]
    assert [row["hops"] for row in rows] == [
        *[f"payments → {TOPIC}"] * 3,
        f"{TOPIC} → {TOPIC}-dlt",
        None,
    ]


def test_fault_105_letters_without_a_topic(spark: SparkSession) -> None:
    """Arroyo writes none: its place counts where the letter is said to be the stream's."""
    arroyo: list[Header] = [("original_partition", b"1"), ("original_offset", b"17")]
    null: list[Header] = [("__streams.errors.topic", None), ("__streams.errors.offset", b"5")]
    letters = [arroyo, [], null, place("x-original-", "payments", 0, 1)]
    rows = trace(spark, letters)
    assert [describe(row)[:3] for row in rows] == [
        *[(None, None, None)] * 3,
        ("payments", None, None),
    ]
    rows = trace(spark, letters, takes_unnamed=True)
    assert [describe(row)[:3] for row in rows] == [
        (None, 1, 17),
        *[(None, None, None)] * 2,
        ("payments", None, None),
    ]


def test_a_share_group_may_name_the_topic_by_its_id_and_hold_nothing(spark: SparkSession) -> None:
    letters = [place("__dlq.errors.", TOPIC_ID, 0, 9), place("x-original-", TOPIC, 0, 9)]
    rows = trace(spark, letters, content=(None, None))
    assert [describe(row)[:3] for row in rows] == [(TOPIC, 0, 9)] * 2
    assert [row["is_empty"] for row in rows] == [True, False]


def test_the_key_that_a_letter_does_not_have(spark: SparkSession) -> None:
    """Karafka's letters had the partition for a key; the original's empty text says none."""
    headers = place("source_", TOPIC, 0, 9)
    letters = [[*headers, ("source_key", raw)] for raw in (b"4711", b"")]
    letters.append([("source_key", b"4711")])
    assert [row["key"] for row in trace(spark, letters)] == [b"4711", None, b"k"]


def test_a_header_of_ones_own_tells_the_error_of_any_framework(spark: SparkSession) -> None:
    own = DeadLetterHeaders(error="why")
    reason: Header = ("why", b"a.Own: text")
    letters = [[*ADDED["spring"][0], reason], [reason], ADDED["spring"][0]]
    rows = trace(spark, letters, own)
    assert [row["error_class"] for row in rows] == ["a.Own", "a.Own", "a.Boom"]


def freeze_letters(spark: SparkSession, *rows: tuple[str, int | None]) -> list[str]:
    """Ids of letters of one place, the oldest first; by key and the original's time."""
    made = " UNION ALL ".join(
        f"SELECT 0 AS source_partition, {i}L AS source_offset, 'id' AS message_id, 5L AS home_offset,"
        f" {i}L AS written_at, {'NULL' if at is None else at} :: bigint AS sent_at, "
        f"CAST('{key}' AS binary) AS key, CAST('{i}' AS binary) AS value, false AS is_empty"
        for i, (key, at) in enumerate(rows)
    )
    found = distinguish_letters(spark.sql(made)).orderBy("source_offset").collect()
    return [row["message_id"] for row in found]


def test_fault_106_a_corrected_letter_is_the_same_message(spark: SparkSession) -> None:
    """Its value is another, its key and time are not; another message has an id of its own."""
    assert freeze_letters(spark, ("a", 7), ("a", 7), ("a", None)) == ["id"] * 3
    assert freeze_letters(spark, ("a", None), ("a", 7)) == ["id"] * 2
    first, same, later, other = freeze_letters(spark, ("a", None), ("a", 7), ("a", 8), ("b", None))
    assert (first, same) == ("id", "id")
    assert len({first, later, other}) == 3
