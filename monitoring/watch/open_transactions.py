"""What readers of committed data wait for: the open transactions behind last stable offsets that
stand still, and whether they have been open for too long.

Brokers are asked only about partitions on which such an offset stands still.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from backlogctl.clock import Deadline, utc_now
from backlogctl.errors import BacklogError, KafkaFailure
from backlogctl.kafka.admin import list_offsets
from backlogctl.kafka.clients import Admin, Properties, find_addresses
from backlogctl.kafka.transactions import (
    OpenTransaction,
    TransactionFate,
    read_open_transactions,
)
from backlogctl.monitoring.offsets.sampler import StreamLike
from backlogctl.monitoring.offsets.standstills import MOMENT, Standstill
from backlogctl.monitoring.verdict.status import GroupStatus, HeldBack, Unseen
from backlogctl.values import Sample
from backlogctl_delivery.visible import join_words

_ASK_SECONDS = 5.0
_PAUSE = 0.5
# A producer that goes on writing may take this share of its own timeout.
_SHARE_OF_TIMEOUT = 0.1


def find_blocked(
    properties: Properties,
    admin: Admin,
    stream: StreamLike,
    sample: Sample,
    standing: Sequence[Standstill],
    limit: Deadline,
    unseen: list[Unseen],
    *,
    settle: bool,
) -> dict[int, HeldBack]:
    """By partition what lies behind a transaction that has been open for too long.

    Args:
        standing: of `find_standstills`.
        unseen: is given why it is not known whose they are.
        settle: False leaves it to the next look whether one is open for too long; else one that is
            young is waited for, some seconds.

    Raises:
        ClusterUnreachable, KafkaFailure: the ends cannot be read.
    """
    if settle:
        standing = _keep_standing(admin, stream, standing, limit)
    else:
        # The others are looked at when there is another sample.
        standing = [one for one in standing if sample.taken_at - one.since >= one.patience]
    if not standing:
        return {}
    first, trouble = _read_first(properties, stream.topic, standing, limit)
    held: dict[int, HeldBack] = {}
    young: dict[int, HeldBack] = {}
    for one in standing:
        if one.partition in first:
            found = first[one.partition]
            back = make_held(one, found, sample.taken_at, stream.isolation)
            is_long = back.seconds_open >= _choose_patience(one, found).total_seconds()
            (held if is_long else young)[one.partition] = back
    if settle and young:
        waiting = [one for one in standing if one.partition in young and one.patience == MOMENT]
        held |= {
            one.partition: young[one.partition]
            for one in _outwait(admin, stream, waiting, young, limit)
        }
    if held and trouble is not None:
        unseen.append(Unseen("transactions", trouble))
    return held


def make_held(
    one: Standstill, transaction: OpenTransaction | None, taken_at: datetime, isolation: str
) -> HeldBack:
    """What lies behind it.

    Args:
        transaction: None where it is not known.
        taken_at: of the sample in which it stood still.
    """
    since, now = one.since, utc_now()
    ends = None
    if transaction is not None:
        written = transaction.last_written
        since = transaction.started_at or min(since, written or since)
        ends = transaction.ends_by
    # By the samples, which have the ledger's clock, and by the coordinator's.
    seconds = max((taken_at - one.since).total_seconds(), 0.0)
    if transaction is not None:
        seconds = max((now - since).total_seconds(), seconds)
    return HeldBack(
        offset=one.offset,
        messages=one.behind,
        since=since,
        seconds_open=seconds,
        seconds_to_end=None if ends is None else max(0.0, (ends - now).total_seconds()),
        transaction=transaction,
        is_certain=isolation == "read_committed",
    )


def with_way_to_ask(status: GroupStatus, properties: Properties) -> GroupStatus:
    """The status, with Kafka's own command where it is not known who left a transaction open."""
    for part in status.partitions:
        one = None if part.held is None else part.held.transaction
        if part.held is not None and (one is None or one.fate is TransactionFate.UNKNOWN):
            words = (
                *("kafka-transactions.sh", "--bootstrap-server", find_addresses(properties)),
                *("describe-producers", "--topic", status.topic),
                *("--partition", str(part.partition)),
            )
            commands = (*status.next_commands, join_words(words))
            return replace(status, next_commands=tuple(dict.fromkeys(commands)))
    return status


def _choose_patience(one: Standstill, transaction: OpenTransaction | None) -> timedelta:
    """How long it may be open."""
    if transaction is None or transaction.fate is not TransactionFate.ONGOING:
        return one.patience
    written, timeout = transaction.last_written, transaction.timeout_seconds
    if written is None or timeout is None or abs(utc_now() - written) > MOMENT:
        return one.patience
    return max(one.patience, timedelta(seconds=_SHARE_OF_TIMEOUT * timeout))


def _keep_standing(
    admin: Admin, stream: StreamLike, standing: Iterable[Standstill], limit: Deadline
) -> list[Standstill]:
    """Those whose last stable offset is still the same."""
    offsets = {one.partition: one for one in standing}
    if not offsets:
        return []
    ends = list_offsets(admin, stream.topic, offsets, "latest", "read_committed", limit)
    return [one for number, one in offsets.items() if ends[number] == one.offset]


def _read_first(
    properties: Properties, topic: str, standing: Iterable[Standstill], limit: Deadline
) -> tuple[Mapping[int, OpenTransaction | None], BacklogError | None]:
    """By partition the first open transaction, None where it cannot be read; and why not all of
    that is known. Partitions without one are left out."""
    numbers = [one.partition for one in standing]
    within = Deadline(limit.remaining(_ASK_SECONDS))
    try:
        found = read_open_transactions(properties, topic, numbers, within)
    except BacklogError as error:
        return dict.fromkeys(numbers), error
    trouble = None
    if any(one.fate is TransactionFate.UNKNOWN for one in found):
        trouble = KafkaFailure(
            "may not describe all transactional ids (DESCRIBE on them is missing)",
            subject=f"topic {topic}",
        )
    return {one.partition: one for one in reversed(found)}, trouble


def _outwait(
    admin: Admin,
    stream: StreamLike,
    waiting: list[Standstill],
    young: Mapping[int, HeldBack],
    limit: Deadline,
) -> list[Standstill]:
    """Those that stand still until a moment is over since their transaction began."""
    moment = MOMENT.total_seconds()
    left = {one.partition: moment - young[one.partition].seconds_open for one in waiting}
    began = time.monotonic()
    while waiting:
        passed = time.monotonic() - began
        if all(left[one.partition] <= passed for one in waiting):
            return waiting
        if limit.remaining() < 2 * _PAUSE:
            return []
        time.sleep(_PAUSE)
        waiting = _keep_standing(admin, stream, waiting, limit)
    return []
