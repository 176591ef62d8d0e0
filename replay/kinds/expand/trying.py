"""A dry run of one consumer, on an empty topic: whom it joins, and what it reads.

Nobody is stopped, and no message is relayed. Topic and group have the same name each time, so what
a try that was killed has left is taken over by the next one.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

from backlog.clock import Deadline
from backlog.config import Stream
from backlog.errors import Refused
from backlog.kafka.admin import (
    TopicInfo,
    delete_group,
    list_offsets,
    read_group_state,
    set_group_offsets,
)
from backlog.kafka.clients import make_admin
from fanout.launchers import Role
from fanout.temporary import create_empty_topic, delete_empty_topic, name_temporary_topic
from replay.around.fleets import fleet_of, launcher_of
from replay.kinds.expand.canary_look import CanaryFailed, CanaryLook, FirstConsumer
from replay.recovery.kind import Say
from replay.recovery.workspace import Workspace

NAME = "try"
SEEN_SECONDS = 60.0  # a service may need that long until it joins
PEOPLE_SECONDS = 600.0
_STAYS_SECONDS = 2.0
_POLL_SECONDS = 0.2
_LEAVE_SECONDS = 15.0


def try_consumer(
    workspace: Workspace, stream: Stream, source: TopicInfo, group: str, say: Say
) -> tuple[str, str]:
    """Starts one consumer as the recovery would, looks at it, and takes everything away again.

    Args:
        source: the stream's topic. group: the one that the consumer is told to join.

    Returns:
        What was seen, and a warning: "" where it does as it should.

    Raises:
        CanaryFailed: it does not stay, or joins or reads something else.
        Refused: another try of this stream is under way, or the topic is not ours.
    """
    admin = make_admin(workspace.properties(stream))
    topic = name_temporary_topic(source.name, NAME)
    launcher = launcher_of(workspace, stream, say)
    fleet = fleet_of(workspace, stream, Role.RECOVERY, NAME, topic=topic, group=group)
    by_people = launcher.name == "manual"
    limit = Deadline(PEOPLE_SECONDS if by_people else SEEN_SECONDS)
    one = FirstConsumer(
        workspace.properties(stream),
        admin,
        launcher,
        fleet,
        stream.group,
        f"`backlogctl plan expand {stream.name} --try` again. Nobody was stopped",
        lambda: _refuse_late(limit, fleet.group) if by_people else None,
    )
    say(f"trying one consumer on the empty topic {topic}")
    # 1. What an earlier try left is ended.
    if not by_people:
        launcher.stop(fleet, one.look)
    _await_nobody(one)
    with ExitStack() as given_back:
        # 2. An empty topic; and the source, for this group, from its end: a consumer that reads
        #    the wrong topic handles next to nothing of it.
        topic_id = create_empty_topic(admin, source, topic, 1)
        given_back.callback(delete_empty_topic, admin, topic, topic_id, 1)
        given_back.callback(delete_group, admin, group)
        ends = list_offsets(admin, source.name, range(source.partitions), "latest")
        set_group_offsets(admin, group, source.name, ends)
        # 3. One consumer, while the group's own go on.
        given_back.callback(_await_nobody, one)
        given_back.callback(launcher.stop, fleet, lambda: None)
        known = frozenset(member.member_id for member in one.find_others())
        began = time.monotonic()
        launcher.scale(fleet, 1, one.look)
        # 4. What it does; then all is taken away, the last first.
        return _watch(one, known, limit, began)


def _watch(
    one: FirstConsumer, known: frozenset[str], limit: Deadline, began: float
) -> tuple[str, str]:
    """Until it reads its topic, and has done so for a while."""
    look = CanaryLook(one)
    stays: Deadline | None = None
    while not limit.expired:
        one.look()
        look.look()
        known = _judge(look, one, known)
        reads = one.find_topics() == {one.fleet.topic}
        stays = (stays or Deadline(_STAYS_SECONDS)) if reads else None
        if stays is not None and stays.expired:
            took = time.monotonic() - began - _STAYS_SECONDS
            return (
                f"one consumer joined group {one.fleet.group} and read {one.fleet.topic}, and "
                f"nothing else, within {took:.1f} s",
                "",
            )
        time.sleep(_POLL_SECONDS)
    told = f"one consumer ran for {limit.seconds:.0f} s, and was seen in no group"
    return told, (
        f"{told}: what it reads is not known. It may assign its partitions itself, or start slowly"
    )


def _judge(look: CanaryLook, one: FirstConsumer, known: frozenset[str]) -> frozenset[str]:
    """Who is in the original group for other reasons than this consumer.

    Raises:
        CanaryFailed: it is this consumer who joined it.
    """
    now = frozenset(member.member_id for member in one.find_others())
    if now <= known or one.launcher.name == "manual" or one.has_joined():
        return known
    failed = look.judge_members(known)
    if failed is not None:
        raise failed
    one.launcher.scale(one.fleet, 1, one.look)  # it was stopped to see who leaves
    return known | now


def _await_nobody(one: FirstConsumer) -> None:
    """Nobody is in the try's group; it is nobody else's.

    Raises:
        Refused: somebody stays in it.
    """
    limit = Deadline(_LEAVE_SECONDS)
    while read_group_state(one.admin, one.fleet.group).is_active:
        if limit.expired:
            raise Refused(
                "somebody is in it: another try is under way, or a consumer of one was not ended",
                subject=f"group {one.fleet.group}",
                hint="end it, then try again; nobody was stopped",
            )
        time.sleep(_POLL_SECONDS)


def _refuse_late(limit: Deadline, group: str) -> None:
    if limit.expired:
        raise CanaryFailed(
            f"nobody started a consumer within {limit.seconds / 60:.0f} min",
            subject=f"group {group}",
            hint="plan without `--try`, or start it when asked; nobody was stopped",
        )
