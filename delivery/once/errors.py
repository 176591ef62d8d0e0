"""Why a message's turn could not be given, or not be ended."""

from __future__ import annotations

from backlog.errors import BacklogError, Refused


class NoMessageId(Refused):
    """The message has no id, or none that can be kept: its repeats could not be told."""

    code = "no_message_id"


class PayloadConflict(Refused):
    """The id is that of another message: the payloads differ."""

    code = "payload_conflict"


class InProgress(BacklogError):
    """Another worker has the message's turn and has not ended it."""

    code = "in_progress"
    retryable = True


class LeaseLost(BacklogError):
    """The work took longer than the lease and another worker took it over: it is done twice."""

    code = "lease_lost"


class MarksAway(BacklogError):
    """Redis did not answer, or takes no writes."""

    code = "marks_away"
    retryable = True
