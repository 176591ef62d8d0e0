"""The words of look-back: what applications say, how a message stands, what services answer."""

from __future__ import annotations

from enum import StrEnum

from backlog.stamps import make_message_id


class Event(StrEnum):
    """What a record of the look-back topic says."""

    PREPARED = "prepared"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"


class Decision(StrEnum):
    """How the business transaction ended. Once it is known it never changes."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"


class State(StrEnum):
    """How a message stands."""

    PREPARED = "prepared"  # waits for the decision
    COMMITTED = "committed"  # decided, and its prepared message has not come yet
    FORWARDING = "forwarding"  # committed, and to be sent
    FORWARDED = "forwarded"
    ROLLED_BACK = "rolled_back"
    PARKED = "parked"  # nothing is done until somebody resumes it


ENDED = (State.FORWARDED, State.ROLLED_BACK)


class Outcome(StrEnum):
    """What came of asking a service."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    UNKNOWN = "unknown"  # the service said so
    FAILED = "failed"  # no answer, or none that can be read: as good as unknown
    REFUSED = "refused"  # it was not asked: not listed, or its address may not be asked

    @property
    def decision(self) -> Decision | None:
        """What it settles; None where it settles nothing."""
        return Decision(self) if self in (Outcome.COMMITTED, Outcome.ROLLED_BACK) else None


class Incident(StrEnum):
    """What does not fit: written down, and nothing else is done about it."""

    COMMIT_AFTER_ROLL_BACK = "commit_after_roll_back"
    COMMIT_AFTER_PARKING = "commit_after_parking"
    ROLL_BACK_AFTER_COMMIT = "roll_back_after_commit"
    ROLL_BACK_AFTER_PARKING = "roll_back_after_parking"
    OTHER_MESSAGE = "other_message"  # prepared again, as another message
    UNREADABLE = "unreadable"  # a record that is none of ours


def make_id(topic: str, biz_type: str, biz_id: str) -> str:
    """The id of a message, here and in the header `backlog-event-id`.

    Args:
        topic: the look-back topic: two installations have ids of their own.
    """
    return make_message_id(topic, (biz_type, biz_id), "look-back")
