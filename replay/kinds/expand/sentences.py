"""What an expansion will do to Kafka and to consumers, in sentences that an approver reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backlog.config import Stream
from backlog.numbers import format_bytes, format_duration, format_plural
from fanout.layout import Layout
from replay.kinds.expand.plan import SettingChange


@dataclass(frozen=True, slots=True)
class Facts:
    """What the sentences are made of.

    `launching` says how the consumers are started and stopped, of the original ones and of those
    on the temporary topic. `changes` is by setting.
    """

    stream: Stream
    layout: Layout
    temporary_topic: str
    recovery_group: str
    replication: int
    members: Sequence[str]
    launching: tuple[str, str]
    changes: Mapping[str, SettingChange]


def describe_stopped(facts: Facts) -> list[str]:
    """Who stops reading, and how."""
    stream = facts.stream
    told = [f"the consumers of group {stream.group}: {facts.launching[0]}"]
    if facts.members:
        told.append(
            f"{format_plural(len(facts.members), 'member')} of it now: {_count(facts.members)}"
        )
    else:
        told.append("the group has no members now")
    return told


def describe_created(facts: Facts) -> list[str]:
    """What is made beside the topic."""
    assert facts.stream.consumers is not None
    layout, ramp = facts.layout, facts.stream.consumers.ramp
    copies = "1 copy" if facts.replication == 1 else f"{facts.replication} copies"
    more = ""
    if layout.consumers > ramp.step:
        more = f", {ramp.step} at a time, {format_duration(ramp.every.total_seconds())} apart"
    return [
        f"topic {facts.temporary_topic}: {format_plural(layout.partitions, 'partition')}, "
        f"{copies} of each, deletes nothing",
        f"{format_plural(layout.consumers, 'consumer')} on it in group {facts.recovery_group}"
        f"{more}: {facts.launching[1]}",
        f"before all others one of them alone handles "
        f"{format_plural(layout.canary.messages, 'message')}, as a trial",
    ]


def describe_raised(facts: Facts) -> list[str]:
    """Which settings of the topic keep more for the time being."""
    return [
        f"{name} of {facts.stream.topic} from {format_setting(name, change.before)} to "
        f"{format_setting(name, change.to)}"
        for name, change in facts.changes.items()
    ]


def describe_given_back(facts: Facts) -> list[str]:
    """What the end looks like, in the order in which it is done."""
    stream = facts.stream
    assert stream.consumers is not None
    told = [
        f"{format_plural(stream.consumers.replicas, 'consumer')} of group {stream.group} on topic "
        f"{stream.topic}, when topic {facts.temporary_topic} is read to its end"
    ]
    told += [
        f"{name} of {stream.topic}: {format_setting(name, change.before)} again, unless somebody "
        "else holds it"
        for name, change in facts.changes.items()
    ]
    told.append(f"topic {facts.temporary_topic} is deleted")
    return told


def _count(names: Sequence[str]) -> str:
    """`3 × rdkafka at 127.0.0.1`."""
    found = Counter(names)
    return ", ".join(name if n == 1 else f"{n} × {name}" for name, n in found.items())


def format_setting(name: str, value: str) -> str:
    """`7 d`, `1.0 GB`, `unlimited`."""
    if int(value) < 0:
        return "unlimited"
    return format_duration(int(value) / 1000) if name.endswith(".ms") else format_bytes(int(value))
