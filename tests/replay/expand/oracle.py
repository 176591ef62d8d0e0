"""The oracle: what must hold after an expansion, whatever happened during it.

Each function gives a list of sentences, empty where all is well.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

from backlogctl.clock import Deadline
from backlogctl.fanout.launchers import Role
from backlogctl.fanout.relay.guard import CLIENT_ID
from backlogctl.fanout.retention import RETENTION_BYTES, RETENTION_MS, restore_retention
from backlogctl.kafka.admin import committed_offsets, describe_group_state, read_topic_id
from backlogctl.kafka.clients import make_admin
from backlogctl.kafka.errors import TopicMissing
from backlogctl.kafka.topics import read_topic_overrides
from backlogctl.ledger import OPERATOR
from backlogctl.values import Recovery
from tests.kit.kafka import read_all, wait_until
from tests.replay.expand.world import PARTITIONS, REPLICAS, World

SETTINGS = (RETENTION_MS, RETENTION_BYTES)
KEPT = "the temporary topic is still there"


@dataclass(frozen=True)
class Line:
    """A message that a consumer handled."""

    key: str
    sequence: int
    topic: str
    partition: int
    at: int


def read_log(world: World) -> list[Line]:
    """What the consumers handled, by time."""
    found = []
    text = world.log.read_text() if world.log.exists() else ""
    for line in text.split("\n")[:-1]:  # the last one may be half written
        key, sequence, topic, partition, at = line.split()
        found.append(Line(key, int(sequence), topic, int(partition), int(at)))
    return sorted(found, key=lambda line: line.at)


def judge(
    world: World,
    recovery: Recovery,
    *,
    retention: dict[str, str | None] | None = None,
    state: str = "verified",
    whole: bool = True,
    ordered: bool = True,
) -> list[str]:
    """All that must hold.

    Args:
        retention: the topic's own settings before; None: unset.
        whole: nobody else committed for the group, so that the copy is the whole range.
    """
    await_handled(world)
    return [
        *find_copy_problems(world, recovery, whole=whole),
        *find_unhandled(world),
        *(find_disorder(world) if ordered else []),
        *find_layout_problems(world, recovery, retention or dict.fromkeys(SETTINGS), state),
    ]


def await_handled(world: World, seconds: float = 90.0) -> None:
    """Gives the original consumers the time to read the rest."""
    world.set_speed(Role.ORIGINAL, None)
    try:
        wait_until(lambda: not find_unhandled(world), seconds)
    except AssertionError:
        return


def find_copy_problems(world: World, recovery: Recovery, *, whole: bool = True) -> list[str]:
    """(a) The temporary topic, as it was before it was deleted: each message of the range once."""
    steps = world.open().ledger.steps
    stopped, closed = (steps.get(recovery.id, name) for name in ("stop_consumers", "cut_over"))
    kept = world.directory / "temporary.json"
    ends = {} if closed is None else closed.detail.get("committed", {})
    if not kept.exists() or stopped is None:
        return ["the temporary topic was never read"] if ends else []
    document = json.loads(kept.read_text())
    copied = Counter((key, sequence) for key, sequence, _ in document["messages"])
    problems = ["a transaction is open in the temporary topic"] if document["open"] else []
    wanted: Counter[tuple[str, int]] = Counter()
    for message in read_all(world.properties, world.topic, range(PARTITIONS)):
        number = str(message.partition())
        start = int(stopped.detail["committed"][number])
        if start <= (message.offset() or 0) < int(ends.get(number, start)):
            wanted[(message.key() or b"").decode(), int(message.value() or 0)] += 1
    if missing := (wanted - copied) if whole else Counter():
        problems.append(f"{missing.total()} messages were not copied, as {min(missing)}")
    if doubled := copied - Counter(set(copied)):
        problems.append(f"{doubled.total()} messages were copied again, as {min(doubled)}")
    if foreign := set(copied) - set(wanted):
        problems.append(f"{len(foreign)} messages were copied beyond the range: {min(foreign)}")
    places: dict[str, set[int]] = {}
    for key, _, partition in document["messages"]:
        places.setdefault(key, set()).add(partition)
    if split := [key for key, found in places.items() if len(found) > 1]:
        problems.append(f"keys are in several partitions: {split[:3]}")
    return problems


def find_unhandled(world: World) -> list[str]:
    """(b) Every message was handled, by whichever consumer."""
    handled = {(line.key, line.sequence) for line in read_log(world)}
    wanted = {(key, n) for key, count in world.produced.items() for n in range(count)}
    left = wanted - handled
    return [f"{len(left)} of {len(wanted)} messages were not handled: {min(left)}"] if left else []


def find_disorder(world: World) -> list[str]:
    """(c) Each key in its order, by the first time that each message was handled."""
    seen: set[tuple[str, int]] = set()
    latest: dict[str, int] = {}
    problems = []
    for line in read_log(world):
        if (line.key, line.sequence) in seen:
            continue
        seen.add((line.key, line.sequence))
        if line.sequence != latest.get(line.key, -1) + 1:
            problems.append(f"{line} came after {latest.get(line.key)}")
        latest[line.key] = line.sequence
    return [f"{len(problems)} breaks of order, the first: {problems[0]}"] if problems else []


def find_layout_problems(
    world: World,
    recovery: Recovery,
    retention: dict[str, str | None],
    state: str,
    client_id: str = "order-service-original",
) -> list[str]:
    """(d) All is as in normal times, and nothing of the recovery is left.

    Args:
        client_id: of the original consumers; "" where each has its own.
    """
    workspace, properties = world.open(), world.properties
    problems = []
    if (now := world.read(recovery)).state != state:
        problems.append(f"it is {now.state}: {dict(now.detail)}")
    try:
        read_topic_id(properties, recovery.plan["temporary"]["topic"], Deadline(30.0))
        problems.append(KEPT)
    except TopicMissing:
        pass
    if state == "cancelled":  # what was unread then is kept by a hold of its own, given back later
        for hold in workspace.ledger.holds.list(open_only=True):
            if hold.holder == OPERATOR:
                restore_retention(workspace.ledger, make_admin(properties), hold)
    found = read_topic_overrides(properties, world.topic, SETTINGS)
    if found != retention:
        problems.append(f"retention is {found}, and was {retention}")
    if holds := workspace.ledger.holds.list(open_only=True):
        problems.append(f"open holds: {holds}")
    if left := world.list_processes(without=(Role.ORIGINAL,)):
        problems.append(f"processes are left: {left}")
    if (running := len(world.list_pids(Role.ORIGINAL))) != REPLICAS:
        problems.append(f"{running} original consumers run")
    return [*problems, *_find_members(world, recovery, client_id)]


def _find_members(world: World, recovery: Recovery, client_id: str) -> list[str]:
    problems = []
    state = describe_group_state(world.properties, world.group)
    if strangers := [m for m in state.members if client_id and m.client_id != client_id]:
        problems.append(f"in the original group: {[str(member) for member in strangers]}")
    if any(member.client_id.startswith(CLIENT_ID) for member in state.members):
        problems.append("the guard is still there")
    if not state.members:
        problems.append("nobody is in the original group")
    others = describe_group_state(world.properties, recovery.plan["recovery_group"])
    if others.members:
        problems.append(f"in the recovery's group: {[str(member) for member in others.members]}")
    # Answers only when no offset commit is undecided.
    committed_offsets(
        world.properties, world.group, world.topic, range(PARTITIONS), Deadline(30.0), True
    )
    return problems
