"""The slot's producer that writes whole record batches, encoded from Arrow columns by kernels."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable

import pyarrow as pa
from confluent_kafka import KafkaError

from backlogctl.clock import Deadline
from backlogctl.kafka.markers import Place, ProducerIdAndEpoch, Unmarked
from backlogctl.kafka.raw_client import RawClient, translate_error, translate_properties
from backlogctl.manifests import CHUNK_SCHEMA
from backlogctl.spark_backfill.injection.producing import SlotProducer
from backlogctl.wire.encoding import encode_table
from backlogctl.wire.produce import WireProducer
from backlogctl_delivery.crashpoints import reach

# Rows that are encoded at once; with a pace, those that are sent at once.
_ROWS, _PACED_ROWS = 20_000, 1_000
_RECORD = pa.schema([CHUNK_SCHEMA.field(name) for name in ("key", "value", "headers")])


class BatchSlotProducer(SlotProducer):
    """As `SlotProducer`, without an object for each message."""

    _client: RawClient | None = None
    _slot = ("", -1)

    def _open(self, max_message_bytes: int) -> None:
        """`init` connects."""

    def init(self) -> None:
        settings, why = translate_properties(self._properties)
        assert settings is not None, why
        try:
            self._client = RawClient(settings, Deadline(self.timeout), self._properties)
        except Exception as error:
            raise translate_error(error, "reach the cluster", self.subject) from error
        self._producer = self._wire = WireProducer(
            self._client, self._id, self._timeout_ms, self._throttle.note
        )
        self._call("take the slot over", self._wire.init_transactions, self._wait)

    def end_unmarked(
        self, places: Iterable[Place], was_committed: Callable[[Unmarked], bool | None]
    ) -> None:
        self._call(
            *("end what was left open", self._wire.end_unmarked, places, was_committed, self._wait)
        )

    @property
    def producer(self) -> ProducerIdAndEpoch:
        return self._wire.producer

    def produce(self, partition: int, table: pa.Table, pace: float | None) -> None:
        self._slot = (self._topic, partition)
        rows, step = table.num_rows, _PACED_ROWS if pace else _ROWS
        for start in range(0, rows, step):
            self._write(self._topic, partition, table.slice(start, step), self._codec)
            if start <= (rows - 1) // 2 < start + step:
                reach("p3.5.produce.middle")
            if pace:
                due = self._begun + min(rows, start + step) / pace
                time.sleep(max(0.0, due - time.monotonic()))

    def produce_record(self, topic: str, partition: int, key: bytes, value: bytes) -> None:
        record = pa.table({"key": [key], "value": [value], "headers": [[]]}, _RECORD)
        self._write(topic, partition, record, "none")

    def flush(self) -> None:
        self._call("deliver messages", self._wire.flush, self.timeout)

    def abort(self) -> None:
        with contextlib.suppress(Exception):
            self._wire.abort_transaction(5.0)

    def drop(self) -> None:
        if self._client is not None:
            self._wire.close()
            self._client.close()

    def _write(self, topic: str, partition: int, table: pa.Table, codec: str) -> None:
        now = int(time.time() * 1000)  # by an original, old time retention would delete it again
        batches = encode_table(table, topic, partition, now, codec, self._limit)
        self._call("deliver messages", self._wire.write, batches, self.timeout)

    def _ask_reason(self) -> KafkaError | None:
        return None  # each answer says its own

    @property
    def first_offset(self) -> int | None:
        return self._wire.offsets.get(self._slot, (None, None))[0]

    @property
    def last_offset(self) -> int | None:
        return self._wire.offsets.get(self._slot, (None, None))[1]
