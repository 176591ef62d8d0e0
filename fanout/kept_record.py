"""One record of a topic, kept byte for byte in a file as archives have them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from backlogctl.archive_manifest import ArchiveFile
from backlogctl.clock import Deadline
from backlogctl.errors import KafkaFailure, StagingError
from backlogctl.kafka.clients import assign_partitions, make_consumer
from backlogctl.kafka.errors import translate
from backlogctl_delivery.stamps import Headers

# The columns of an archive's files; the partition is the name of the folder.
_SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("timestamp_type", pa.int8()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
    ]
)
_SETTINGS: Mapping[str, object] = {
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
}


@dataclass(frozen=True, slots=True)
class KeptRecord:
    """A record as it was; `timestamp_type`: 0 of its producer, 1 of the broker, -1 none."""

    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def fetch_record(
    properties: Mapping[str, str], topic: str, partition: int, offset: int, limit: Deadline
) -> KeptRecord:
    """The committed record at an offset.
    Raises KafkaFailure: none is there, or it could not be read in time.
    """
    subject = f"topic {topic}, partition {partition}, offset {offset}"
    consumer = make_consumer(properties, _SETTINGS)
    try:
        assign_partitions(consumer, [TopicPartition(topic, partition, offset)])
        while not limit.expired:
            message = consumer.poll(limit.remaining(0.5))
            error = None if message is None else message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                if error.retriable():
                    continue
                raise translate(error, subject, "read it")
            if message is None:
                continue
            if error is None and message.offset() == offset:
                return _take(message, partition, offset)
            raise KafkaFailure("no committed record is there", subject=subject)
    except KafkaException as error:
        raise translate(error, subject, "read it") from error
    finally:
        consumer.close()
    raise KafkaFailure(
        f"could not be read within {limit.seconds:g} s", subject=subject, retryable=True
    )


def _take(message: Message, partition: int, offset: int) -> KeptRecord:
    kind, at = message.timestamp()
    # confluent-kafka counts from 0, none; Kafka from -1.
    return KeptRecord(
        partition,
        offset,
        at,
        kind - 1,
        message.key(),
        message.value(),
        cast(Headers, tuple(message.headers() or ())),
    )


def keep_record(record: KeptRecord, directory: Path) -> ArchiveFile:
    """Writes it to a file of its own, on the disk when this returns; the same again is fine.
    Raises StagingError: what was read back is not what was written, or nothing can be written.
    """
    path = f"partition={record.partition}/offset-{record.offset}.parquet"
    target = directory / path
    draft = target.with_name(f".{target.name}")
    row = {name: getattr(record, name) for name in _SCHEMA.names}
    row["headers"] = [{"name": name, "value": value} for name, value in record.headers]
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist([row], _SCHEMA), draft)
        if pq.ParquetFile(draft).read().to_pylist() != [row]:
            raise StagingError("what was read back is not what was written", subject=str(draft))
        data = draft.read_bytes()
        _flush(draft)
        draft.replace(target)
        _flush(target.parent)
    except OSError as error:
        raise StagingError(
            f"the record could not be kept: {error.strerror}; nothing was moved",
            subject=str(target),
            hint="make room, or see `staging.dir`",
        ) from error
    digest = hashlib.sha256(data).hexdigest()
    at = record.offset
    return ArchiveFile(path, record.partition, 1, at, at, len(data), digest)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
