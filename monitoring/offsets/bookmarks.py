"""Notes which message a committed offset points at, while that message can still be read."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError, KafkaFailure
from backlogctl.kafka.admin import read_topic_id
from backlogctl.kafka.clients import Admin
from backlogctl.kafka.peek import Peeked, peek_at
from backlogctl.ledger import Ledger
from backlogctl.monitoring.offsets.sampler import StreamLike
from backlogctl.values import Bookmark, Sample
from backlogctl_delivery.stamps import MESSAGE_ID, find_value, hash_identity

BOOKMARK_SECONDS = 3.0
TOO_SHORT = 0.5  # seconds that are too few for an answer
NO_END = sys.maxsize


@dataclass(slots=True)
class _Looked:
    """What need not be read again of a topic: by partition the committed offset, and the last
    stable offset up to which there is nothing to note.
    """

    topic_id: str
    partitions: dict[int, tuple[int, int]] = field(default_factory=dict)


class Bookmarker:
    """Bookmarks of streams; each commit is looked at once by those who keep this."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._looked: dict[str, _Looked] = {}

    def note(
        self, stream: StreamLike, sample: Sample, admin: Admin, limit: Deadline
    ) -> BacklogError | None:
        """Notes the message at each committed offset of a sample that has no bookmark yet.

        What cannot be read in a few seconds is tried again at the next sample, and so is a
        partition that the group has read to its end.

        Returns:
            What failed; a sample is worth having without its bookmarks.
        """
        # Not every stream has a source: what would not be rebuilt needs no bookmark.
        source: Any = getattr(stream, "source", None)
        if source is None or limit.remaining() < TOO_SHORT:
            return None
        looked = self._looked.get(stream.name)
        if looked is None or looked.topic_id != sample.topic_id:
            looked = self._looked[stream.name] = _Looked(sample.topic_id)
        try:
            self._note(sample, looked.partitions, source.identity.header, admin, limit)
        except BacklogError as error:
            return error
        return None

    def _note(
        self,
        sample: Sample,
        looked: dict[int, tuple[int, int]],
        header: str | None,
        admin: Admin,
        limit: Deadline,
    ) -> None:
        place = (sample.stream, sample.group, sample.topic_id)
        starts = _choose(sample, looked)
        if starts and not looked:
            for partition in self._ledger.bookmarks.find_noted(*place, starts):
                looked[partition] = (starts.pop(partition), NO_END)
        within = Deadline(min(BOOKMARK_SECONDS, limit.remaining() / 2))
        found = peek_at(admin, sample.topic, starts, 1, within)
        is_complete = not within.expired
        firsts = {
            partition: messages[0]
            for partition, messages in found.items()
            # One from before the commit, of an earlier read, says nothing of it.
            if messages and messages[0].offset >= starts[partition]
        }
        noted = [
            Bookmark(partition, starts[partition], first.offset, digest)
            for partition, first in firsts.items()
            if (digest := _hash(first, header, sample.topic_id)) is not None
        ]
        if noted:
            # Of a topic that was made anew meanwhile, offsets name other messages.
            if read_topic_id(admin, sample.topic, limit)[0] != sample.topic_id:
                return
            self._ledger.bookmarks.add(*place, noted, sample.taken_at)
        looked.update({partition: (starts[partition], NO_END) for partition in firsts})
        silent = found.keys() - firsts.keys()
        if is_complete:
            ends = {part.partition: part.lso for part in sample.partitions}
            looked.update({partition: (starts[partition], ends[partition]) for partition in silent})
        elif silent:
            raise KafkaFailure(
                f"could not read the messages at the committed offsets of {len(silent)} of "
                f"{len(starts)} partitions within {within.seconds:.1f} s",
                subject=f"topic {sample.topic}",
                hint="it is tried again at each look",
                retryable=True,
            )


def _choose(sample: Sample, looked: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    """The commits to look at: within the log, something is behind them, and not looked at yet."""
    starts = {}
    for part in sample.partitions:
        if part.committed is None or not part.low <= part.committed < part.lso:
            continue
        committed, end = looked.get(part.partition, (-1, 0))
        if committed != part.committed or end < part.lso:
            starts[part.partition] = part.committed
    return starts


def _hash(message: Peeked, header: str | None, topic_id: str) -> str | None:
    """None where nothing tells the message from others, or it is one that was put back: it has
    the identity of the lost one, at another place.
    """
    if any(name == MESSAGE_ID for name, _ in message.headers):
        return None
    identity = message.key if header is None else find_value(message.headers, header)
    return None if identity is None else hash_identity(topic_id, identity)
