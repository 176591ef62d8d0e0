"""Sends what is committed: at once where a commit tells of it, else when a scan finds it due.

One thread does all of it: it claims, hands to Kafka, and marks. Any number of senders may work on
one table. Killed anywhere, the rows it held are due again when their lease ends.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, Producer

from backlogctl_delivery.errors import BacklogError, UsageError
from backlogctl_delivery.kafka import (
    PARTITIONERS,
    ConnectionReports,
    find_addresses,
    make_producer,
    refuse_login,
)
from backlogctl_delivery.outbox.claims import Acknowledged, Claims, Failure
from backlogctl_delivery.outbox.database import LONGEST_LEASE_MS, OutboxDatabase, require_shape
from backlogctl_delivery.outbox.in_flight import DeliveryResults, InFlight
from backlogctl_delivery.outbox.messages import Hints
from backlogctl_delivery.visible import escape_text

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine


@dataclass(frozen=True, slots=True)
class Settings:
    """How a sender works.

    Attributes:
        scan_every: between two looks for what is due.
        lease: for so long nobody else sends what was claimed; a crashed sender's rows wait it out.
            An hour at most.
        delivery_timeout: for so long Kafka has to take a message; shorter than the lease.
        most: keys in one claim, and messages without a key; fewer than twice as many rows.
        most_of_key: rows of one key in one claim.
        most_in_flight: rows that are claimed and not told.
        first_interval: before the second attempt; each later one is twice as long.
        longest_interval: between two attempts.
    """

    scan_every: timedelta = timedelta(seconds=1)
    lease: timedelta = timedelta(seconds=60)
    delivery_timeout: timedelta = timedelta(seconds=20)
    most: int = 500
    most_of_key: int = 100
    most_in_flight: int = 2_000
    first_interval: timedelta = timedelta(seconds=1)
    longest_interval: timedelta = timedelta(minutes=5)

    def __post_init__(self) -> None:
        # 0 is librdkafka's word for "no limit".
        if self.delivery_timeout < timedelta(milliseconds=1):
            raise UsageError(
                f"a delivery timeout of {self.delivery_timeout.total_seconds():g} s is too short",
                subject="outbox",
                hint="give it, and the lease, some seconds",
            )
        if self.lease < 2 * self.delivery_timeout:
            raise UsageError(
                f"a lease of {self.lease.total_seconds():g} s is too short for a delivery timeout "
                f"of {self.delivery_timeout.total_seconds():g} s",
                subject="outbox",
                hint="make it twice as long: else two senders send the same",
            )
        if self.lease > timedelta(milliseconds=LONGEST_LEASE_MS):
            raise UsageError(
                f"a lease of {self.lease.total_seconds():g} s is too long",
                subject="outbox",
                hint="an hour at most: a crashed sender's rows wait it out",
            )


@dataclass(slots=True)
class SenderCounts:
    """What a sender has done since it started."""

    delivered: int = 0
    refused: int = 0
    away: int = 0
    parked: int = 0
    # Acknowledged when another had claimed the row already: that one sends it once more.
    late: int = 0


_FIRST_SECONDS, _LONGEST_SECONDS = 0.5, 30.0
# What comes and goes is not told each time.
_SPARING_SECONDS = 600.0


class Outage:
    """One thing's outages. `what`: as the warning names it."""

    def __init__(self, log: logging.Logger, what: str) -> None:
        self._log, self._what = log, what
        self._interval = 0.0
        self._next = 0.0
        self._added_at = float("-inf")
        self._was_told = False
        self.is_on = False

    def is_time(self) -> bool:
        """Whether it may be asked (again)."""
        return time.monotonic() >= self._next

    @property
    def seconds_left(self) -> float:
        """Until it may be asked again."""
        return max(0.0, self._next - time.monotonic())

    def note(self, reason: str, *, traceback: bool = False) -> None:
        """It failed; reports that come together count as one."""
        now = time.monotonic()
        if not self.is_on and now - self._added_at >= _SPARING_SECONDS:
            self._log.warning("%s: %s", self._what, escape_text(reason), exc_info=traceback)
            self._added_at, self._was_told = now, True
        self.is_on = True
        if now >= self._next:
            self.ask()

    def ask(self) -> None:
        """It is about to be asked again: the next time is later."""
        self._interval = min(_LONGEST_SECONDS, self._interval * 2 or _FIRST_SECONDS)
        self._next = time.monotonic() + self._interval

    def end(self) -> None:
        """It works."""
        if self.is_on and self._was_told:
            self._log.warning("%s: works again", self._what)
        self.is_on = self._was_told = False
        self._interval = self._next = 0.0


_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.005
# What was told is marked together with what is told soon after.
_SETTLE_SECONDS, _SETTLE_COUNT = 0.02, 500
# A key with more rows than a claim takes goes on so soon.
_GO_ON_SECONDS = 0.05
_PROBE_SECONDS = 3.0
# At the end a hint is waited for so long: its transaction may have been undone.
_LAST_LOOK_SECONDS = 0.1
# A topic that is gone refuses many: the metric counts them, the log names one now and then.
_WARNING_SECONDS = 60.0
# Rows of a clock that is ahead are looked for so often.
_FORWARD_SECONDS = 10.0


class OutboxSender:
    """Sends the messages of one outbox.

    Args:
        source: the application's Engine or AsyncEngine, or a URL.
        kafka: librdkafka's properties. Idempotence and acks=all are set here.
        command: what lists its rows, for warnings.

    Raises:
        ConfigurationError: the URL is none that can hold an outbox.
    """

    def __init__(
        self,
        source: Engine | AsyncEngine | URL | str,
        kafka: Mapping[str, Any],
        settings: Settings | None = None,
        *,
        command: str = "backlogctl outbox list",
    ) -> None:
        self._settings, self._command = settings or Settings(), command
        self._database = OutboxDatabase(source)
        self._kafka = dict(kafka)
        self._claims = Claims(
            self._database,
            lease=self._settings.lease,
            most=self._settings.most,
            most_of_key=self._settings.most_of_key,
            first_interval=self._settings.first_interval,
            longest_interval=self._settings.longest_interval,
        )
        self._hints = Hints()
        self._added: queue.SimpleQueue[Iterable[int]] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._patience = 0.0
        self._reports = ConnectionReports()
        self._producer: Producer | None = None
        self._in_flight: InFlight | None = None
        # What came of messages and could not be written down yet.
        self._unmarked = DeliveryResults()
        self._is_table_checked = False
        self._next_scan = self._next_forward = self._settled_at = 0.0
        # Rows of a clock that is ahead, since that was told last.
        self._forward = 0
        self.counts = SenderCounts()
        self.kafka_outage = Outage(_log, "Kafka")
        self.database_outage = Outage(_log, "the database")
        self.thread_outage = Outage(_log, "the sender's thread")
        self._next_warning: dict[str, float] = {}

    def start(self) -> None:
        """Sends in a thread of its own."""
        self._thread = threading.Thread(target=self._run_quietly, name="outbox", daemon=True)
        self._thread.start()

    def add_hints(self, hints: Iterable[int]) -> None:
        """Rows of these ids are committed, or about to be. Returns at once; of any thread."""
        self._added.put(hints)

    def close(self, seconds: float = 30.0) -> None:
        """Ends when what is in flight is told, or after so many seconds. Of any thread."""
        self._patience = seconds
        self._stop.set()
        self._added.put(())
        if self._thread is not None:
            self._thread.join(seconds + 5)
            self._thread = None

    def run(self) -> None:
        """Sends until `close` is called.
        Raises ConfigurationError: librdkafka does not take a property.
        """
        self._open_producer()
        # A wrong address, or login, is told now; nothing is claimed before a broker answers.
        self._probe()
        try:
            self._database.run(self._work)
        finally:
            self._database.close()

    def _work(self) -> None:
        began = time.monotonic()
        while not self._stop.is_set():
            self._turn()
            if self.thread_outage.is_on and time.monotonic() - began > _LONGEST_SECONDS:
                self.thread_outage.end()
        self._finish()

    def _run_quietly(self) -> None:
        while not self._stop.is_set():
            try:
                self.run()
            except BaseException as error:  # noqa: BLE001 - a thread has nobody to raise to
                # The application goes on. What was claimed is due when its lease ends.
                self.thread_outage.note(
                    f"it has ended, and begins again: {type(error).__name__}: {error}",
                    traceback=True,
                )
                self._collect(0.0)
                self._stop.wait(self.thread_outage.seconds_left)

    def _open_producer(self) -> None:
        settings = {
            **self._kafka,
            "enable.idempotence": True,
            "acks": "all",
            "message.timeout.ms": int(self._settings.delivery_timeout.total_seconds() * 1_000),
            # A topic that is not there is told as that, and is no outage.
            "topic.metadata.propagation.max.ms": 5_000,
            # It tells of each lost connection; one warning of ours is enough.
            "log_level": 2,
        }
        settings.setdefault("error_cb", self._reports)
        settings.setdefault("linger.ms", 1)
        # Where Java's clients place keys, and a recovery looks for them by default. Of an
        # application and of `outbox run` the same, or a key has two partitions.
        settings.setdefault("partitioner", PARTITIONERS["murmur2"])
        self._producer = make_producer(settings)
        self._in_flight = InFlight(
            self._producer, lambda: make_producer({**settings, "batch.num.messages": 1})
        )

    def _turn(self) -> None:
        assert self._in_flight is not None
        # After a stall: what is told already is not claimed again.
        self._in_flight.poll(0)
        if self._may_claim():
            try:
                self._claim()
                self.database_outage.end()
            except BacklogError as error:
                self.database_outage.note(str(error))
        if len(self._in_flight):
            self._in_flight.poll(_POLL_SECONDS)
            self._collect(0.0)
        else:
            self._in_flight.poll(0)
            self._collect(self._idle_seconds())
        self._settle()

    def _may_claim(self) -> bool:
        assert self._in_flight is not None
        if len(self._in_flight) >= self._settings.most_in_flight:
            return False
        # What cannot be marked would be sent once more at the end of each lease.
        if len(self._unmarked) or not self.database_outage.is_time():
            return False
        if not self.kafka_outage.is_on:
            return True
        return self.kafka_outage.is_time() and self._probe()

    def _check_table(self) -> None:
        """Of an older version it could be claimed from, and never be marked."""
        if not self._is_table_checked:
            require_shape(self._database)
            self._is_table_checked = True

    def _probe(self) -> bool:
        """Whether a broker answers again, so that a claim is worth its while."""
        assert self._producer is not None
        self.kafka_outage.ask()
        try:
            self._producer.list_topics("__consumer_offsets", _PROBE_SECONDS)
        except KafkaException:
            self._producer.poll(0)  # what it reports
            self.kafka_outage.note(self._tell_away("no broker answers"))
            # This one may have lost their addresses for ever (see `Silence`).
            flight = self._in_flight
            if flight is not None and not len(flight) and not flight.results:
                self._open_producer()
            return False
        self._reports.clear()
        return True

    def _tell_away(self, why: str) -> str:
        addresses = find_addresses(self._kafka)
        if self._reports.refusal is not None:
            return str(refuse_login(self._reports.refusal, "", "send", addresses))
        report = f": {self._reports.last}" if self._reports.last else ""
        return f"{why}{report} (bootstrap.servers {addresses or 'are not given'}; messages wait)"

    def _claim(self) -> None:
        assert self._in_flight is not None
        now = time.monotonic()
        self._claim_hinted(now)
        if now >= self._next_scan:
            has_more = self._bring_forward(now)
            claimed = self._claims.claim_due()
            self._in_flight.start(claimed, self._find_lease_end(now))
            if not len(self._in_flight):
                self.kafka_outage.end()
            pause = (
                0.0
                if claimed or has_more or self._claims.is_midway
                else self._settings.scan_every.total_seconds()
            )
            self._next_scan = now + pause

    def _bring_forward(self, now: float) -> bool:
        """Whether there may be more: what is in flight does not wait until all are found."""
        if now < self._next_forward:
            return False
        count, has_more = self._claims.bring_forward()
        self._next_forward = now if has_more else now + _FORWARD_SECONDS
        self._forward += count
        if self._forward and not has_more and self._may_warn("ahead"):
            _log.warning(
                "%d messages were written by a clock ahead of the database's: due as if written "
                "now; correct the clock of the application, or of the database",
                self._forward,
            )
            self._forward = 0
        return has_more

    def _claim_hinted(self, now: float) -> None:
        assert self._in_flight is not None
        self._check_table()
        if hints := self._hints.take_due(now, self._settings.most):
            claimed = self._claims.claim_hinted(hints)
            self._hints.drop(message.id for message in claimed)
            self._in_flight.start(claimed, self._find_lease_end(now))

    def _find_lease_end(self, now: float) -> float:
        # Nothing more of a claim is sent when what was sent last could outlive the lease.
        spare = self._settings.lease - self._settings.delivery_timeout
        return now + spare.total_seconds()

    def _idle_seconds(self) -> float:
        now = time.monotonic()
        until = min(self._next_scan, self._hints.next_at)
        # An outage has a pace of its own.
        may_look = self.kafka_outage.is_time() and self.database_outage.is_time()
        least = _POLL_SECONDS if may_look else 0.2
        return max(least, min(until - now, 1.0))

    def _collect(self, seconds: float) -> None:
        try:
            hints = self._added.get(timeout=seconds) if seconds else self._added.get_nowait()
            while True:
                self._hints.add(hints)
                hints = self._added.get_nowait()
        except queue.Empty:
            return

    def _settle(self, *, at_once: bool = False) -> None:
        assert self._in_flight is not None
        now = time.monotonic()
        count = len(self._in_flight.results) + len(self._unmarked)
        is_time = now - self._settled_at >= _SETTLE_SECONDS or not len(self._in_flight)
        if not count or not (at_once or is_time or count >= _SETTLE_COUNT):
            return
        self._settled_at = now
        results, self._unmarked = self._unmarked, DeliveryResults()
        latest = self._in_flight.take_results()
        self._note_kafka(latest.delivered, latest.failed)
        results.add(latest)
        try:
            if results.delivered:
                marked = self._claims.mark_sent(results.delivered)
                self.counts.delivered += len(results.delivered)
                self.counts.late += len(results.delivered) - marked
                results.delivered = []
            if results.failed:
                self._claims.mark_failed(results.failed)
                self._tell_refused(results.failed)
                results.failed = []
            if results.given_up:
                self._claims.release(results.given_up)
                results.given_up = []
            self._next_scan = min(self._next_scan, now + _GO_ON_SECONDS)
        except BacklogError as error:
            # Marked when the database is back, unless the leases have ended by then.
            self.database_outage.note(str(error))
            self._unmarked = results
            self._added.put(())
            self._stop.wait(0.2)

    def _note_kafka(self, delivered: list[Acknowledged], failed: list[Failure]) -> None:
        refused = sum(failure.refused for failure in failed)
        self.counts.refused += refused
        self.counts.away += len(failed) - refused
        if delivered:
            self.kafka_outage.end()
        elif refused < len(failed):
            away = next(failure for failure in failed if not failure.refused)
            self.kafka_outage.note(self._tell_away(away.reason))
        assert self._in_flight is not None
        if self._in_flight.is_broken:
            # librdkafka's way out of a fatal error. What it held is due when its lease ends.
            self._open_producer()

    def _tell_refused(self, failed: list[Failure]) -> None:
        parked = [failure for failure in failed if failure.is_last]
        self.counts.parked += len(parked)
        has_key = bool(parked) and parked[0].message.ordering_key is not None
        self._warn(parked, "is parked" + ", and holds up its key" * has_key, " --state parked")
        # The first refusal may be that of another message in its batch; at the end nobody is left
        # to tell of the second one.
        is_over = self._stop.is_set()
        again = [e for e in failed if e.refused and (e.message.attempts or is_over)]
        self._warn([e for e in again if not e.is_last], "is tried again", "")

    def _warn(self, failed: list[Failure], outcome: str, option: str) -> None:
        if not failed or not self._may_warn(outcome):
            return
        _log.warning(
            "message %d to topic %s %s: %s; see `%s%s`",
            failed[0].message.id,
            failed[0].message.topic,
            outcome,
            escape_text(failed[0].reason),
            self._command,
            option,
        )

    def _may_warn(self, what: str) -> bool:
        now = time.monotonic()
        if now < self._next_warning.get(what, 0.0):
            return False
        self._next_warning[what] = now + _WARNING_SECONDS
        return True

    def _finish(self) -> None:
        assert self._in_flight is not None
        end = time.monotonic() + self._patience
        self._collect(0.0)
        while (now := time.monotonic()) < end:
            # What was committed a moment ago does not wait for a scanner.
            can_send = not (self.kafka_outage.is_on or self.database_outage.is_on)
            is_told = can_send and self._hints.next_at - now < _LAST_LOOK_SECONDS
            has_room = len(self._in_flight) < self._settings.most_in_flight
            if not (is_told or len(self._in_flight) or len(self._unmarked)):
                break
            try:
                if is_told and has_room and not len(self._unmarked):
                    self._claim_hinted(now)
            except BacklogError as error:
                self.database_outage.note(str(error))
            self._in_flight.poll(0.05)
            self._settle()
        self._settle(at_once=True)
        self._in_flight.give_up()
