"""Batches of one partition as they lie in its log, those of committed transactions only.

The next request is on its way while its caller works on the last answer.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from backlogctl.clock import Deadline
from backlogctl.errors import KafkaFailure
from backlogctl.kafka.batches import BatchHeader, scan_batches
from backlogctl.kafka.raw_client import RawClient, read_leaders, translate_error

# Later versions name topics by ids.
_OLDEST, _NEWEST = 4, 12
_ANSWER_SECONDS = 30.0
_PAUSE = 0.1
# Without an answer, for as long as brokers take to elect leaders.
_PATIENCE = 30.0


class OffsetOutOfRange(KafkaFailure):
    """The log starts later by now, or ends before."""

    code = "offset_out_of_range"


class OldFormat(KafkaFailure):
    """The log has messages of format 0 or 1, which are in no record batch."""

    code = "old_format"


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one answer had.

    Attributes:
        batches: with their bytes, in the order of the log; neither control batches nor aborted
            ones. The first may begin before the offset that was asked for.
        next_offset: where it is read on.
        is_end: nothing more is stable now.
        leader_epoch: of the last batch; None where there was none.
    """

    batches: list[tuple[BatchHeader, memoryview]]
    next_offset: int
    is_end: bool
    leader_epoch: int | None = None


class PartitionReader:
    """Reads a partition from an offset on, read committed."""

    def __init__(
        self, client: RawClient, topic: str, partition: int, position: int, max_bytes: int
    ) -> None:
        self._client, self._topic, self._partition = client, topic, partition
        self._max_bytes = max_bytes
        self.position = position
        self._subject = f"topic {topic}[{partition}]"
        self._leader: int | None = None
        self._asked: Any = None
        self._patience = Deadline(_PATIENCE)

    def read(self, within: float) -> Fetched:
        """The next answer; an empty one where there is none within so many seconds.

        Raises:
            OffsetOutOfRange, OldFormat, BatchesUnreadable.
            ClusterUnreachable, KafkaFailure: the cluster gives nothing for half a minute.
        """
        limit = Deadline(within)
        try:
            if self._asked is None:
                self._ask()
            answer = self._client.await_sent(self._asked, limit)
        except TimeoutError:
            return self._nothing()
        except Exception as error:  # noqa: BLE001 - translated, and raised if it lasts
            self._endure(error)
            return self._nothing()
        self._asked = None
        return self._take(answer)

    def _nothing(self) -> Fetched:
        return Fetched([], self.position, is_end=False)

    def _ask(self) -> None:
        if self._leader is None:
            limit = Deadline(min(_ANSWER_SECONDS, max(1.0, self._patience.remaining())))
            leaders = read_leaders(self._client, self._topic, limit)
            self._leader = leaders.get(self._partition)
            if self._leader is None:
                raise KafkaFailure("it has no leader", subject=self._subject, retryable=True)
        self._asked = self._client.send_soon(self._make_request(), self._leader)

    def _make_request(self) -> Any:
        from kafka.protocol.consumer import FetchRequest

        wanted = FetchRequest.FetchTopic
        place = wanted.FetchPartition(
            partition=self._partition,
            fetch_offset=self.position,
            partition_max_bytes=self._max_bytes,
        )
        return FetchRequest(
            replica_id=-1,
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=self._max_bytes,
            isolation_level=1,
            topics=[wanted(topic=self._topic, partitions=[place])],
            min_version=_OLDEST,
            max_version=_NEWEST,
        )

    def _take(self, answer: Any) -> Fetched:
        from kafka.errors import OffsetOutOfRangeError, for_code

        found = [part for one in answer.responses for part in one.partitions]
        code = answer.error_code or (found[0].error_code if found else 0)
        if code == OffsetOutOfRangeError.errno:
            raise OffsetOutOfRange(f"offset {self.position} is not in it", subject=self._subject)
        if code:
            self._endure(for_code(code)())
            return self._nothing()
        self._patience = Deadline(_PATIENCE)
        if not found:  # as brokers answer where a quota is used up
            return self._nothing()
        part, start = found[0], self.position
        batches = list(self._list_batches(part)) if part.records else []
        if self.position > start:
            try:
                self._ask()
            except Exception as error:  # noqa: BLE001
                self._endure(error)
        is_end = self.position >= part.last_stable_offset
        epoch = batches[-1][0].leader_epoch if batches else None
        return Fetched(batches, self.position, is_end, epoch)

    def _list_batches(self, part: Any) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Aborted transactions by their first offsets and their ends in the log, as Java does."""
        view = memoryview(part.records)
        scan = scan_batches(view, self._subject, self.position)
        if scan.old_format:
            raise OldFormat("it has messages of an old format", subject=self._subject)
        begun = [(one.first_offset, one.producer_id) for one in part.aborted_transactions or ()]
        heapq.heapify(begun)
        aborted: set[int] = set()
        at = 0
        for header in scan.headers:
            batch = view[at : at + header.size]
            at += header.size
            while begun and begun[0][0] <= header.last_offset:
                aborted.add(heapq.heappop(begun)[1])
            if header.is_control:
                if header.is_commit is False:
                    aborted.discard(header.producer_id)
                continue
            is_aborted = header.is_transactional and header.producer_id in aborted
            if header.record_count and header.last_offset >= self.position and not is_aborted:
                yield header, batch
        if scan.next_offset is not None:
            self.position = max(self.position, scan.next_offset)

    def _endure(self, error: Exception) -> None:
        self._asked, self._leader = None, None
        ours = translate_error(error, "read it", self._subject)
        if self._patience.expired or not ours.retryable:
            raise ours from error
        time.sleep(_PAUSE)
