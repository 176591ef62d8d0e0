"""Whether a group has really stopped (protocol P4.3)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from backlogctl.clock import Deadline
from backlogctl.errors import HangingTransaction, Refused
from backlogctl.fanout.relay.guard import CLIENT_ID
from backlogctl.kafka.admin import (
    committed_offsets,
    read_group_state,
)
from backlogctl.kafka.clients import Admin, Connection, make_admin
from backlogctl.kafka.errors import GroupActive
from backlogctl.kafka.markers import FIND_HINT, find_hidden
from backlogctl.kafka.raw_client import keep_clients

# Kafka's clients commit every 5 s by themselves; one that assigns its partitions never shows as a
# member, so only its commits reveal it.
QUIET_SECONDS = 5.5
_POLL_SECONDS = 0.25
# The longest usual session.timeout.ms is 45 s, Java's default; nobody outside can see it.
STATIC_SECONDS = 60.0


class GroupStillCommits(Refused):
    """The group is empty, and yet its committed offsets move."""

    code = "group_still_commits"


def await_quiet(
    properties: Mapping[str, str],
    group: str,
    topic: str,
    partitions: int,
    look: Callable[[], None],
    *,
    within: float,
    quiet: float = QUIET_SECONDS,
) -> None:
    """Waits until the group has no members and its commits have not moved for `quiet` seconds.

    Args:
        within: seconds the group may take to get empty.

    Raises:
        GroupActive: it did not get empty in time; names its members.
        GroupStillCommits: somebody commits without being a member (fault 66).
    """
    admin = make_admin(properties)
    await_empty(admin, group, look, within=within)
    before = committed_offsets(admin, group, topic, range(partitions))
    limit = Deadline(quiet)
    while not limit.expired:
        look()
        time.sleep(min(_POLL_SECONDS, limit.remaining()))
    # Who joined meanwhile may have committed too: then it is a member that is to be named.
    await_empty(admin, group, look, within=1.0)
    after = committed_offsets(admin, group, topic, range(partitions))
    moved = sorted(number for number in before if before[number] != after[number])
    if moved:
        names = ", ".join(str(number) for number in moved)
        raise GroupStillCommits(
            f"it has no members, and yet its commits moved within {quiet:g} s on partitions "
            f"{names}: a consumer that assigns its partitions itself is still running",
            subject=f"group {group} on topic {topic}",
            hint="find and stop it, then run the recovery again",
        )


@keep_clients()  # it asks again and again
def await_empty(admin: Admin, group: str, look: Callable[[], None], *, within: float) -> None:
    """Waits until the group has no members, longer where a dead guard of ours is one, or static
    members, which do not leave when they are stopped. Raises GroupActive: names the members.
    """
    limit, for_guard = Deadline(within), Deadline(max(within, 20.0))
    for_static = Deadline(max(within, STATIC_SECONDS))
    while True:
        look()
        state = read_group_state(admin, group, Deadline(30.0))
        if not state.is_active:
            return
        if not limit.expired:
            time.sleep(_POLL_SECONDS)
            continue
        others = [m for m in state.members if not m.client_id.startswith(CLIENT_ID)]
        static = bool(others) and all(member.instance for member in others)
        waited = for_static if static else limit if others else for_guard
        if waited.expired:
            names = ", ".join(str(member) for member in state.members) or f"it is {state.state}"
            hint = "stop these consumers (and whatever restarts them), then run again"
            if static:
                hint += "; static members (`group.instance.id`) stay for their session.timeout.ms"
            raise GroupActive(
                f"it did not get empty within {waited.seconds:g} s; still there: {names}",
                subject=f"group {group}",
                hint=hint,
            )
        time.sleep(_POLL_SECONDS)


# Waits until no transaction is open on a topic, so that a read_committed reader sees all of it.
#
# A commit is answered before its markers are written, and a hanging transaction holds back the
# last stable offset of its partition: before that, "nothing unread" would be a guess.

# Our relays' transactions time out after 15 s; the coordinator checks every 10 s by default.
DECIDED_SECONDS = 40.0
_DECIDED_POLL_SECONDS = 0.05


def await_decided(
    connection: Connection,
    topic: str,
    partitions: int,
    look: Callable[[], None],
    *,
    within: float = DECIDED_SECONDS,
) -> None:
    """Waits until no transaction is open on the topic, which must have no writer.
    Raises HangingTransaction: one stays open for too long.
    """
    limit, numbers = Deadline(within), dict.fromkeys(range(partitions))
    while undecided := find_hidden(connection, topic, numbers):
        look()
        if limit.expired:
            places = ", ".join(f"{n} at offset {at}" for n, at in sorted(undecided.items()))
            raise HangingTransaction(
                f"a transaction is open for more than {within:g} s on partitions {places}: what "
                "lies behind it cannot be read",
                subject=f"topic {topic}",
                hint=FIND_HINT,
            )
        time.sleep(_DECIDED_POLL_SECONDS)
