"""The wire engine: whole record batches, routed in compiled kernels (protocol P6)."""

from __future__ import annotations

import time
from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

from backlogctl.clock import Deadline
from backlogctl.errors import HangingTransaction, KafkaFailure, Refused
from backlogctl.fanout.relay.commits import find_commits
from backlogctl.fanout.relay.interface import (
    Notify,
    Position,
    PositionExpired,
    RelayTask,
    ShouldStop,
    SourceRange,
)
from backlogctl.fanout.relay.partition import (
    CALL_SECONDS,
    INIT_SECONDS,
    Copied,
    PartitionRelay,
    SourceBatch,
)
from backlogctl.kafka.clients import Admin
from backlogctl.kafka.markers import UNMARKED_HINT, ProducerIdAndEpoch, Unmarked, is_pending
from backlogctl.kafka.raw_client import RawClient, translate_error, translate_properties
from backlogctl.kafka.raw_fetch import ENDLESS, FetchedBatches, RawFetch
from backlogctl.values import OffsetRange
from backlogctl.wire.produce import WireProducer, read_membership
from backlogctl.wire.routing import BatchRouter
from backlogctl_delivery.crashpoints import reach

# Of one process.
_READ_BYTES = 24 * 1024 * 1024
_LEAST_BYTES, _MOST_BYTES = 1024 * 1024, 8 * 1024 * 1024
_RATIO = 4  # of what is decompressed at once to what is fetched at once
_CONNECT_SECONDS = 30.0
_READ_SECONDS = 0.1
_PENDING_PAUSE = 0.2


class _OldFormat(KafkaFailure):
    """The log has messages of format 0 or 1, which are in no record batch."""

    code = "old_format"


class WireEngine:
    name = "wire"

    def relay(
        self, task: RelayTask, part: SourceRange, notify: Notify, should_stop: ShouldStop
    ) -> Position:
        try:
            return _WireRelay(task, part, notify, should_stop).run()
        except _OldFormat:  # which only the other one can read
            from backlogctl.fanout.relay.records import RecordEngine

            return RecordEngine().relay(task, part, notify, should_stop)

    def take_over(self, task: RelayTask, partition: int, limit: Deadline, *, ends: bool) -> None:
        part = SourceRange(partition, 0)
        _WireRelay(task, part, lambda _: None, lambda: True).take_over(limit, ends=ends)


@dataclass
class _WireBatch(SourceBatch):
    """What was fetched from `start` on; `count` is of batches, of which `most` are sent at once."""

    most: int | None = None
    start: int = 0
    fetched: FetchedBatches | None = None


class _WireRelay(PartitionRelay):
    """Two connections: an answer that is waited for would hold up what is written."""

    _client: RawClient | None = None
    _producer: WireProducer | None = None
    _reader: RawFetch | None = None
    _rest: FetchedBatches | None = None  # of an answer, what is for another `_write`

    def _open_producer(self) -> WireProducer:
        task = self._task
        settings, why = translate_properties(task.properties)
        if settings is None:
            raise Refused(
                f"the wire engine cannot connect {why}",
                subject=self._subject,
                hint="set `expand.engine: record`",
            )
        limit = Deadline(_CONNECT_SECONDS)
        settings["receive_message_max_bytes"] = 2**31 - 1
        try:
            self._client = RawClient(settings, limit, task.properties)
        except Exception as error:
            raise translate_error(error, "connect", self._subject) from error
        name = task.transactional_id(self._part.partition)
        timeout_ms = task.transaction_timeout_ms
        self._producer = WireProducer(self._client, name, timeout_ms, self._throttle.note)
        return self._producer

    def _open_reader(self) -> None:
        task, counters = self._task, self._counters
        share = min(_MOST_BYTES, max(_LEAST_BYTES, _READ_BYTES // task.side_by_side))
        self._router = BatchRouter(
            task.target,
            task.order,
            task.partitioner,
            task.target_partitions,
            counts=counters.counts or {},
            turn=counters.relayed,
            codec=task.compression,
            limit=self._read_limit(),
        )
        self._at_once = _RATIO * share
        rest = [OffsetRange(self._part.partition, self._next, ENDLESS)]
        self._reader = RawFetch(task.properties, task.source, rest, "read_committed", share)

    def _read(self) -> SourceBatch:
        assert self._reader is not None
        start, end = self._next, self._part.end
        found = self._rest or next(iter(self._reader.read(_READ_SECONDS)), None)
        self._rest = None
        if found is None:
            return _WireBatch(start, False, start=start)
        if found.passed_over is not None:
            raise PositionExpired(
                f"the messages at offset {start} are gone before they were relayed",
                subject=self._subject,
                hint="`backlogctl gaps` shows what is lost; the relay goes on behind it",
            )
        if found.old_format:
            raise _OldFormat("it has messages of an old format", subject=self._subject)
        reached = found.next_offset if end is None else min(end, found.next_offset)
        at_end = found.is_end or reached == end
        batch = _WireBatch(reached, at_end, len(found.data), start=start, fetched=found)
        if self._pace and batch.count:
            sizes = list(accumulate(map(len, found.data)))
            batch.most = max(1, bisect_right(sizes, self._most_bytes))
            batch.size = sizes[batch.most - 1]
        return batch

    def _write(self, batch: SourceBatch, opened: Copied) -> None:
        assert isinstance(batch, _WireBatch)
        assert self._producer is not None
        assert batch.fetched is not None
        producer, end, fetched = self._producer, self._part.end, batch.fetched
        bounds = (batch.start, ENDLESS if end is None else end)
        remaining = 0 if end is None else end - batch.start
        batches = list(zip(fetched.headers, fetched.data, strict=True))
        at_once = min(self._at_once, self._most_bytes)
        routed = self._router.route(
            batches[: batch.most], *bounds, remaining, self._subject, at_once
        )
        if (taken := routed.taken) < len(batches):
            headers = fetched.headers[taken:]
            self._rest = replace(fetched, headers=headers, data=fetched.data[taken:])
            batch.reached, batch.at_end = min(bounds[1], headers[0].base_offset), False
        self._epoch = fetched.headers[taken - 1].leader_epoch
        opened.count += routed.count
        opened.bytes += routed.bytes
        opened.largest = max(opened.largest, routed.largest)
        for place, count in routed.counts.items():
            opened.counts[place] = opened.counts.get(place, 0) + count
        before = producer.sent
        self._call(lambda: producer.write(routed.batches, CALL_SECONDS), "write")
        opened.sent += producer.sent - before
        reach("p4.6.produce.middle")

    def _flush(self) -> None:
        producer = self._producer
        assert producer is not None
        self._call(lambda: producer.flush(CALL_SECONDS), "write")
        self._last_offsets |= {place: last for (_, place), (_, last) in producer.offsets.items()}

    def _send_position(self, counters: str, membership: bytes) -> None:
        assert self._producer is not None
        position: dict[str, Any] = {
            "partition_index": self._part.partition,
            "committed_offset": self._next,
            "committed_leader_epoch": -1 if self._epoch is None else self._epoch,
            "committed_metadata": counters,
        }
        of = read_membership(membership)
        self._producer.send_offsets(of, self._task.source, position, CALL_SECONDS)

    def _end_unmarked(self, admin: Admin) -> None:
        task, producer = self._task, self._producer
        assert producer is not None
        groups = [group for group in (task.recovery_group, task.group) if group]

        def was_committed(left: Unmarked) -> bool | None:
            """As the position says that a relay of this recovery committed."""
            limit = Deadline(INIT_SECONDS)
            for group in groups:
                if self._is_pending(group):
                    continue
                number = self._part.partition
                found = find_commits(admin, group, task.source, [number], limit).get(number)
                if found is None or not found.is_of(task.recovery_id):
                    # In the original group somebody else's commit may stand in the place of ours.
                    return left.was_committed(None) if group == groups[0] else None
                last = found.counters(task.recovery_id).producer
                return None if last is None else left.was_committed(last)
            # Nobody has seen any of it, where it has no marker anywhere.
            return None if left.elsewhere else left.was_committed(None)

        places = [(task.target, number) for number in range(task.target_partitions)]
        end = partial(producer.end_unmarked, places, was_committed, INIT_SECONDS, groups)
        # The questions have as long, too.
        self._call(end, "end what was left open", 3 * INIT_SECONDS)
        limit = Deadline(INIT_SECONDS)
        while pending := [group for group in groups if self._is_pending(group)]:
            if limit.expired:
                raise HangingTransaction(
                    f"a transaction's commit of its offset is undecided for {limit.seconds:g} s, "
                    "so it is not known where to begin; nothing was relayed",
                    subject=f"group {pending[0]} on {self._subject.removeprefix('relay of ')}",
                    hint=UNMARKED_HINT,
                )
            time.sleep(_PENDING_PAUSE)

    def _is_pending(self, group: str) -> bool:
        assert self._client is not None
        place = (self._task.source, self._part.partition)
        try:
            return is_pending(self._client, group, place, Deadline(INIT_SECONDS))
        except Exception as error:
            raise translate_error(error, "ask for pending commits", self._subject) from error

    def _producer_id(self) -> ProducerIdAndEpoch:
        assert self._producer is not None
        return self._producer.producer

    def _close(self) -> None:
        if self._producer is not None:
            self._producer.close()
        if self._client is not None:
            self._client.close()
        if self._reader is not None:
            self._reader.close()
