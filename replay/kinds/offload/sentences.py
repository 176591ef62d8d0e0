"""What an offload will do to Kafka and to consumers, in sentences that an approver reads."""

from __future__ import annotations

from collections.abc import Sequence

from backlog.config import Stream
from backlog.numbers import format_bytes, format_plural
from replay.kinds.offload.plan import CutGroup, PlannedFreeing, PlannedPlace


def describe_stopped(stream: Stream, launching: str, members: Sequence[str]) -> list[str]:
    """Who stops reading, and how."""
    told = [f"the consumers of group {stream.group}: {launching}"]
    if members:
        told.append(f"{format_plural(len(members), 'member')} of it now")
    else:
        told.append("the group has no members now")
    return told


def describe_moved(
    stream: Stream, unread: int, size: int | None, place: PlannedPlace | None
) -> list[str]:
    """Where the messages go, and how the group's offsets are set."""
    many = f"at most {format_plural(unread, 'message')}"
    if size is not None:
        many += f", about {format_bytes(size)}"
    where = f"into the archive {place.location}" if place else "nowhere: they are not archived"
    return [
        f"{many}, and what is written until the consumers are stopped: {where}",
        f"the committed offsets of group {stream.group}, to the last stable offsets of that time",
    ]


def describe_freed(
    stream: Stream, freeing: PlannedFreeing, cut: Sequence[CutGroup], *, archived: bool
) -> list[str]:
    """What is deleted from the brokers, and who loses by it."""
    after = "once it is archived and read back" if archived else "for good"
    told = [
        f"all of topic {stream.topic} up to these offsets is deleted, {after}",
        freeing.told,
    ]
    told += [
        f"group {item.group} loses at most {format_plural(item.messages, 'message')}"
        for item in cut
    ]
    return told


def describe_given_back(
    stream: Stream, place: PlannedPlace | None, *, has_source: bool
) -> list[str]:
    """What comes back, and how."""
    assert stream.consumers is not None
    replicas = format_plural(stream.consumers.replicas, "consumer")
    told = [f"{replicas} of group {stream.group}, which go on with what is written from then on"]
    if place is not None:
        told.append(
            "what was archived waits as a gap: the nightly backfill, or `backlogctl plan redrive "
            f"{stream.name} --from archive:...`, puts it back as it was"
        )
    elif has_source:
        told.append(
            "what was discarded is a gap: the nightly backfill, or `backlogctl plan rebuild "
            f"{stream.name}`, rebuilds it from the tables"
        )
    else:
        told.append("what was discarded never comes back: the stream has no source")
    return told
