"""Ends the last segment of each partition, so that what is deleted below an offset is freed.

Brokers delete whole segments, and never the last one, however much of it lies below the log start
(UnifiedLog.deleteLogStartOffsetBreachedSegments of Kafka 4.3). A segment ends when a batch comes
whose time is more than `segment.ms` after that of the segment's first one (LogSegment.shouldRoll);
a partition that nobody writes to never ends one. So `segment.ms` is lowered for some seconds, and
where nobody writes a batch is written that no reader gets: the marker of an empty transaction.
`segment.bytes` is left alone: brokers refuse batches that are larger than it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from backlogctl.clock import Deadline
from backlogctl.errors import KafkaFailure
from backlogctl.fanout.disk import TIERED
from backlogctl.fanout.retention import explain_change, find_lost
from backlogctl.formats import Say
from backlogctl.kafka.admin import (
    TopicInfo,
    alter_topic_config,
    connect,
    list_newest_times,
    list_offsets,
    read_topic_settings,
)
from backlogctl.kafka.clients import Admin, Connection, Properties
from backlogctl.kafka.raw_client import translate_properties
from backlogctl.kafka.transactions import write_empty_transaction

SEGMENT_MS, SEGMENT_BYTES = "segment.ms", "segment.bytes"
ROLL_MS = 1_000
ROLLED_SECONDS = 15.0
# Until every broker has the lowered value.
_SLACK_SECONDS = 1.0
# Clocks differ by less; batches that are dated further ahead come from no clock.
_AHEAD_MS = 60_000
_ASK_SECONDS = 30.0
_PAUSE_SECONDS = 0.1


def name_roll_transactional_id(prefix: str, topic: str) -> str:
    """A colon is in no topic's name, so it is never an injection's id."""
    return f"{prefix}:roll:{topic}"


# Whether the last segments can be ended; nothing is changed by asking.


@dataclass(frozen=True, slots=True)
class RollOutlook:
    """Why no partition's last segment may end, "" where nothing is known to be in the way; and
    partitions whose own may not."""

    problem: str
    dated_ahead: frozenset[int]

    def list_sure(self, partitions: Iterable[int]) -> frozenset[int]:
        """Those whose last segment ends."""
        return frozenset() if self.problem else frozenset(partitions) - self.dated_ahead


def foresee_roll(properties: Properties, connection: Connection, topic: TopicInfo) -> RollOutlook:
    """Asks the brokers; what they do not answer is in the way."""
    admin, limit = connect(connection), Deadline(_ASK_SECONDS)
    problem = _find_obstacle(properties, admin, topic, limit)
    try:
        ahead = find_dated_ahead(admin, topic.name, range(topic.partitions), limit)
    except KafkaFailure as error:
        return RollOutlook(problem or error.message, frozenset())
    return RollOutlook(problem, ahead)


def _find_obstacle(properties: Properties, admin: Admin, topic: TopicInfo, limit: Deadline) -> str:
    if topic.config.get(TIERED) == "true":
        return "the topic is tiered: its brokers keep a segment until it is uploaded"
    settings, why = translate_properties(properties)
    if settings is None:
        return f"no transaction without messages can be written {why}"
    if int(topic.config.get(SEGMENT_MS, 0)) <= ROLL_MS:
        return ""
    try:
        alter_topic_config(admin, topic.name, {SEGMENT_MS: str(ROLL_MS)}, limit, only_ask=True)
    except KafkaFailure as error:
        return f"{SEGMENT_MS} cannot be lowered: {error.message}"
    return ""


def find_dated_ahead(
    connection: Connection, topic: str, partitions: Iterable[int], limit: Deadline
) -> frozenset[int]:
    """Partitions with messages of the future: a segment that begins with one does not end by time.
    Raises KafkaFailure: also where brokers cannot tell (before Kafka 3.0).
    """
    return _list_ahead(list_newest_times(connection, topic, partitions, limit))


def _list_ahead(newest: Mapping[int, int]) -> frozenset[int]:
    latest = time.time() * 1000 + _AHEAD_MS
    return frozenset(number for number, at in newest.items() if at > latest)


# The setting: its old value is on record before it is lowered; who calls sees to that.


def read_segment_ms(connection: Connection, topic: str) -> tuple[int, str | None]:
    """What is in force, and what the topic itself sets; None where it does not."""
    setting = read_topic_settings(connection, topic, [SEGMENT_MS], Deadline(_ASK_SECONDS))
    found = setting[SEGMENT_MS]
    return int(found.value or 0), found.override


def lower_segment_ms(connection: Connection, topic: str) -> None:
    """Segments end after a second. Raises KafkaFailure: refused; then nothing is changed."""
    alter_topic_config(connection, topic, {SEGMENT_MS: str(ROLL_MS)}, Deadline(_ASK_SECONDS))


def give_segment_ms_back(connection: Connection, topic: str, topic_id: str, old: str | None) -> str:
    """Sets what the topic set before; safe to call again.

    Returns:
        Why it was left as it is; "" where the topic has its old value.

    Raises:
        ClusterUnreachable, KafkaFailure: call again.
    """
    admin, limit = connect(connection), Deadline(_ASK_SECONDS)
    if lost := find_lost(admin, topic, topic_id, SEGMENT_MS, limit):
        return lost
    now = read_segment_ms(admin, topic)[1]
    if now == str(ROLL_MS):
        alter_topic_config(admin, topic, {SEGMENT_MS: old}, limit)
    elif now != old:
        return explain_change(SEGMENT_MS, topic, now, ROLL_MS, old)
    return ""


# The segments themselves.


def end_segments(
    properties: Properties,
    connection: Connection,
    topic: str,
    partitions: Collection[int],
    transactional_id: str,
    *,
    look: Callable[[], None],
    say: Say,
) -> dict[int, int]:
    """Ends the last segment of each partition, while `segment.ms` is low, and waits until readers
    get to its end.

    Args:
        look: called while it waits; may raise, and ends the waiting.

    Returns:
        Of partitions where that is sure, an offset behind all that was there: what is below it is
        in segments that have ended.

    Raises:
        ClusterUnreachable, KafkaFailure: offsets cannot be read.
    """
    admin = connect(connection)
    # What comes until every broker has the lowered value may end nothing.
    _wait(_SLACK_SECONDS, look)
    newest = list_newest_times(admin, topic, partitions, Deadline(_ASK_SECONDS))
    ahead = _list_ahead(newest)
    latest = max((at / 1000 for n, at in newest.items() if n not in ahead), default=0.0)
    # Until each segment's first batch is old enough, by the clocks of those who wrote it.
    _wait(max(0.0, latest - time.time()) + ROLL_MS / 1000, look)
    limit, sure = Deadline(ROLLED_SECONDS), frozenset(partitions) - ahead
    # A batch of a producer that is that much newer has ended it already.
    now = list_newest_times(admin, topic, partitions, Deadline(_ASK_SECONDS))
    silent = {number for number in sure if now[number] <= newest[number] + ROLL_MS}
    before = list_offsets(admin, topic, silent, "latest")
    try:
        if silent:
            write_empty_transaction(properties, topic, silent, transactional_id, limit)
    except KafkaFailure as error:
        say(f"{error.message}: a segment ends only where producers write")
        sure -= silent
    # All replicas in sync have what is below. Where only the marker came, a new segment begins at
    # it or before: it need not be taken for something that was there.
    ends = list_offsets(admin, topic, partitions, "latest")
    ends |= {number: at for number, at in before.items() if ends[number] == at + 1}
    while True:
        stable = list_offsets(admin, topic, partitions, "latest", "read_committed")
        passed = {number: ends[number] for number in sure if stable[number] >= ends[number]}
        if len(passed) == len(sure) or limit.expired:
            return passed
        look()
        time.sleep(_PAUSE_SECONDS)


def _wait(seconds: float, look: Callable[[], None]) -> None:
    limit = Deadline(seconds)
    while not limit.expired:
        look()
        time.sleep(_PAUSE_SECONDS)
