"""One sample of a stream, in the only order that shows no losses that never happened."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Protocol

from backlogctl.clock import Deadline, utc_now
from backlogctl.errors import KafkaFailure
from backlogctl.kafka.admin import (
    Commit,
    list_offsets,
    read_commits,
    read_group_state,
    read_topic_id,
)
from backlogctl.kafka.clients import Admin, Connection, connect
from backlogctl.kafka.group_types import SHARE, GroupListing, read_group_listing
from backlogctl.monitoring.offsets.history import SIMPLE
from backlogctl.values import LOG_START, PartitionSample, Sample

TRIES = 5
PAUSE = 1.0
SAME_CLOCK = timedelta(0)


class StreamLike(Protocol):
    """What monitoring needs of a configured stream."""

    @property
    def name(self) -> str: ...
    @property
    def cluster(self) -> str: ...
    @property
    def topic(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def isolation(self) -> str: ...


def take_sample(
    stream: StreamLike,
    connection: Connection,
    deadline: Deadline | None = None,
    skew: timedelta = SAME_CLOCK,
) -> Sample:
    """Samples every partition of the stream's topic for its group (protocol P1).

    The order is the rule: `committed` must be read after `low`, or a group that commits while the
    log start moves up behind it seems to have lost what it read.

    A log that seems to end before a commit is looked at again, for some seconds.

    Args:
        skew: how far the ledger's clock is ahead of this host's; samples carry the ledger's time.

    Raises:
        TopicMissing: the topic is not there.
        KafkaFailure: the topic was recreated again and again while it was sampled.
        ClusterUnreachable: within the deadline nobody answered.
    """
    admin, limit = connect(connection), deadline or Deadline(30.0)
    topic, group = stream.topic, stream.group
    for tried in range(1, TRIES + 1):
        # Who is in the group comes first: one that joins later cannot make it look deserted.
        state = _read_state(admin, group, limit)
        # 1. The topic's id.
        topic_id, count = read_topic_id(admin, topic, limit)
        partitions = range(count)
        # 2. The log starts.
        low = list_offsets(admin, topic, partitions, "earliest", deadline=limit)
        # 3. The commits, the last stable ones.
        commits = read_commits(admin, group, topic, partitions, limit, log_starts=low)
        # The sample's time: before the ends are read, so an offset at `high` or above is younger.
        taken_at, started = utc_now() + skew, time.monotonic()
        # 4. The last stable offsets.
        lso = list_offsets(admin, topic, partitions, "latest", "read_committed", limit)
        # 5. The high watermarks.
        high = list_offsets(admin, topic, partitions, "latest", "read_uncommitted", limit)
        took = time.monotonic() - started
        # 6. The topic's id again: offsets of two topics must not meet in one sample.
        if read_topic_id(admin, topic, limit)[0] != topic_id:
            continue
        # A broker that was restarted may answer with ends that it has not recovered yet.
        behind = any(c is not None and c.offset > high[p] for p, c in commits.items())
        if behind and tried < TRIES and limit.remaining() > 2 * PAUSE:
            time.sleep(PAUSE)
            continue
        return Sample(
            stream=stream.name,
            cluster=stream.cluster,
            topic=topic,
            group=group,
            topic_id=topic_id,
            taken_at=taken_at,
            partitions=tuple(
                sample_partition(p, low[p], commits.get(p), lso[p], high[p]) for p in partitions
            ),
            group_state=state,
            took=took,
        )
    raise KafkaFailure(
        f"the topic was recreated during each of {TRIES} tries to sample it",
        subject=f"topic {topic}",
        hint="find out what keeps deleting it, then try again",
        retryable=True,
    )


def _read_state(admin: Admin, group: str, limit: Deadline) -> str:
    """The group's state; `simple` of one that nobody ever joined, `share` of a share group, of
    which no commit must be awaited."""
    known = read_group_state(admin, group, limit)
    if known.state != "dead":
        return find_state(known.state, is_simple=known.is_simple)
    # confluent-kafka lists neither share nor streams groups: one that works is not there for it.
    found = read_group_listing(admin.properties, group, limit)
    if found is None or found == GroupListing():
        return known.state
    return SHARE if found.type == SHARE else found.state


def find_state(state: str, *, is_simple: bool) -> str:
    """Of a listed group; `simple` where nobody ever joined it."""
    return SIMPLE if is_simple and state == "empty" else state


def sample_partition(
    partition: int, low: int, commit: Commit | None, lso: int, high: int
) -> PartitionSample:
    """One partition at one moment."""
    # An empty log begins where it ends: nothing is left to read on the way there.
    epoch = None if commit is None or (commit.epoch == LOG_START and low == high) else commit.epoch
    return PartitionSample(
        partition=partition,
        low=low,
        committed=None if commit is None else commit.offset,
        lso=lso,
        high=high,
        committed_epoch=epoch,
    )
