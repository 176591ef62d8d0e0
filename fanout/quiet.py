"""Whether a group has really stopped (protocol P4.3)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from backlog.clock import Deadline
from backlog.errors import Refused
from backlog.kafka.admin import committed_offsets, describe_group_state, read_group_state
from backlog.kafka.clients import Admin, make_admin
from backlog.kafka.errors import GroupActive
from fanout.relay.guard import CLIENT_ID

# Kafka's clients commit every 5 s by themselves; one that assigns its partitions never shows as a
# member, so only its commits reveal it.
QUIET_SECONDS = 5.5
_POLL_SECONDS = 0.25


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
    await_empty(admin, group, look, within=1.0)


def await_empty(admin: Admin, group: str, look: Callable[[], None], *, within: float) -> None:
    """Waits until the group has no members, longer where a dead guard of ours is one.

    Raises:
        GroupActive: names the members.
    """
    limit, for_guard = Deadline(within), Deadline(max(within, 20.0))
    while True:
        look()
        # Listed, not described: that is safe while brokers go away (`groups.read_commits`).
        if not read_group_state(admin, group, Deadline(30.0)).is_active:
            return
        if not limit.expired:
            time.sleep(_POLL_SECONDS)
            continue
        state = describe_group_state(admin, group, Deadline(30.0))
        others = [m for m in state.members if not m.client_id.startswith(CLIENT_ID)]
        if state.is_active and (others or for_guard.expired):
            names = ", ".join(str(member) for member in state.members) or f"it is {state.state}"
            raise GroupActive(
                f"it did not get empty within {within:g} s; still there: {names}",
                subject=f"group {group}",
                hint="stop these consumers (and whatever restarts them), then run again",
            )
        time.sleep(_POLL_SECONDS)
