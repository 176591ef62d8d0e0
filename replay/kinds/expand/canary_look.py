"""Whether the first consumer does what it was told: it runs, in its group, on its topic."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from backlog.clock import Deadline
from backlog.errors import BacklogError, KafkaFailure
from backlog.kafka.admin import describe_group_state, read_group_state
from backlog.kafka.clients import Admin
from backlog.kafka.errors import GroupActive
from backlog.kafka.groups import Member
from fanout.launchers.interface import CheckStop, Fleet, Launcher
from fanout.relay.guard import find_others
from fanout.relay.interface import ConsumerCameBack
from replay.kinds.expand.context import ExpandContext

LOOK_SECONDS = 0.5
LEAVE_SECONDS = 15.0  # longer than the session timeouts of most consumers that are killed
_POLL_SECONDS = 0.2


class CanaryFailed(BacklogError):
    """The first consumer on the temporary topic does not work, or reads something else."""

    code = "canary_failed"


@dataclass(frozen=True, slots=True)
class FirstConsumer:
    """One consumer on a temporary topic.

    Attributes:
        fleet: what it was told: its topic and group.
        original: the stream's group, which is none of its business.
        afterwards: what a person does once it is mended.
        look: called while it is waited for; may raise.
    """

    properties: Mapping[str, str]
    admin: Admin
    launcher: Launcher
    fleet: Fleet
    original: str
    afterwards: str
    look: CheckStop

    @property
    def subject(self) -> str:
        """For errors."""
        return f"group {self.fleet.group} on topic {self.fleet.topic}"

    def has_joined(self) -> bool:
        """Whether its group has members."""
        return read_group_state(self.admin, self.fleet.group).is_active

    def find_others(self) -> tuple[Member, ...]:
        """Members of the original group, but for guards."""
        return find_others(self.properties, self.original, Deadline(10.0))

    def find_topics(self) -> frozenset[str]:
        """What members of its group are assigned partitions of; nothing without members."""
        if not self.has_joined():
            return frozenset()
        state = describe_group_state(self.admin, self.fleet.group, Deadline(10.0))
        return frozenset(topic for member in state.members for topic in member.topics)


def find_first(context: ExpandContext) -> FirstConsumer:
    """Of a run."""
    number = context.recovery.id
    return FirstConsumer(
        context.properties,
        context.admin,
        context.launcher,
        context.fleet,
        context.recovery.group,
        f"`backlogctl run {number}` goes on, or `backlogctl cancel {number}` lets the group's own "
        "consumers go on; they stay stopped until then",
        context.look,
    )


class CanaryLook:
    """Looks at the first consumer until it has committed something."""

    def __init__(self, consumer: FirstConsumer) -> None:
        self._consumer = consumer
        self._look_at = 0.0

    def look(self) -> None:
        """Asks the launcher, and the recovery's group.

        Raises:
            CanaryFailed: it keeps ending, or is assigned another topic.
        """
        if time.monotonic() < self._look_at:
            return
        one = self._consumer
        ended = one.launcher.explain(one.fleet)
        if ended is not None:
            raise CanaryFailed(
                f"the first consumer does not stay: {ended}",
                subject=one.subject,
                hint=f"mend it, then {one.afterwards}",
            )
        with suppress(KafkaFailure):  # a broker is away: the next look shows it
            self._check_topic()
        self._look_at = time.monotonic() + LOOK_SECONDS

    @contextmanager
    def judging(self) -> Iterator[None]:
        """Says so where it is the first consumer who is in the original group.

        Raises:
            CanaryFailed: instead of the error that names a member of that group.
        """
        try:
            yield
        except (ConsumerCameBack, GroupActive) as error:
            # People are not asked to stop theirs.
            if self._consumer.launcher.name == "manual":
                raise
            judged: CanaryFailed | None = None
            with suppress(BacklogError):  # unknown; who is there was said
                judged = self.judge_members()
            raise judged or error from error

    def judge_members(self, known: frozenset[str] = frozenset()) -> CanaryFailed | None:
        """What to say of members of the original group: None where they are not the first consumer.

        They are where that is not in its own group, and they go away when it is stopped.

        Args:
            known: ids of members who were there before.
        """
        one = self._consumer

        def find() -> tuple[Member, ...]:
            return tuple(m for m in one.find_others() if m.member_id not in known)

        found = find()
        if not found or one.has_joined():
            return None
        names = ", ".join(str(member) for member in found)
        one.launcher.stop(one.fleet, one.look)
        limit = Deadline(LEAVE_SECONDS)
        while find():
            if limit.expired:
                return None
            one.look()
            time.sleep(_POLL_SECONDS)
        return CanaryFailed(
            f"it ignores BACKLOG_GROUP: the first consumer joined the group {one.original} "
            f"instead, as {names}, and left it when it was stopped",
            subject=one.subject,
            hint="make the consumers take their group from the variable BACKLOG_GROUP (or the "
            f"placeholder {{group}}), then {one.afterwards}",
        )

    def _check_topic(self) -> None:
        one = self._consumer
        others = sorted(one.find_topics() - {one.fleet.topic})
        if not others:
            return
        raise CanaryFailed(
            f"it ignores BACKLOG_TOPIC: the first consumer reads {', '.join(others)} in the "
            f"recovery's group, not only {one.fleet.topic}. What it handled of that is "
            "handled again by the original consumers",
            subject=one.subject,
            hint="make the consumers take their topic from the variable BACKLOG_TOPIC (or the "
            f"placeholder {{topic}}), then {one.afterwards}",
        )
