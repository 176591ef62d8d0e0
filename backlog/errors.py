"""One root for every error a user can see.

An error says what was tried, on what, why it failed and what to do next. Client errors are
translated into these once, at the edge; whether to retry is decided by the error's `retryable`,
never by its text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class BacklogError(Exception):
    """Something failed.

    Args:
        message: what was tried and why it failed, one sentence, no secrets.
        subject: what it was tried on (`stream orders`, `topic orders[2]`, a file, a table).
        hint: what to do next.
        retryable: overrides the class's answer.
    """

    code: ClassVar[str] = "failed"
    exit_code: ClassVar[int] = 1
    retryable: bool = False
    # How a recovery stands that this ended: `Standing.to_json`; not sent to other processes.
    standing: Mapping[str, Any] | None = None

    def __init__(
        self, message: str, *, subject: str = "", hint: str = "", retryable: bool | None = None
    ) -> None:
        super().__init__(message, subject, hint)
        self.message = message
        self.subject = subject
        self.hint = hint
        if retryable is not None:
            self.retryable = retryable

    def __str__(self) -> str:
        text = f"{self.subject}: {self.message}" if self.subject else self.message
        return f"{text} ({self.hint})" if self.hint else text

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process borders (Spark's Python workers), so they must pickle.
        return (_rebuild, (type(self), self.message, self.subject, self.hint, self.retryable))

    def to_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "message": self.message,
            "subject": self.subject,
            "hint": self.hint,
            "retryable": self.retryable,
        }


def _rebuild(
    kind: type[BacklogError], message: str, subject: str, hint: str, retryable: bool
) -> BacklogError:
    return kind(message, subject=subject, hint=hint, retryable=retryable)


class UsageError(BacklogError):
    """The command was called with something it cannot take."""

    code = "usage"
    exit_code = 2


class ConfigurationError(BacklogError):
    """backlog.yaml is wrong."""

    code = "configuration"
    exit_code = 2


class ApprovalNeeded(BacklogError):
    """The recovery is not approved, or its approval is expired or for another plan."""

    code = "approval_needed"
    exit_code = 3


class Paused(BacklogError):
    """The work stopped between two chunks and will go on: pause, or outside the window."""

    code = "paused"
    exit_code = 4
    retryable = True


class Refused(BacklogError):
    """A guard refused; nothing was changed."""

    code = "refused"
    exit_code = 5


class PutBackAlready(Refused):
    """There is nothing to put back: an earlier recovery has put all of it back."""


class PlanStale(Refused):
    """Kafka or the ledger is no longer what the plan was made on: plan again."""

    code = "plan_stale"


class LeaseHeld(Refused):
    """Another runner holds the recovery."""

    code = "lease_held"
    retryable = True


class InvalidTransition(Refused):
    """The database refused a change of state, or a second recovery of the same topic or group."""

    code = "invalid_transition"


class LedgerError(BacklogError):
    """The ledger database could not be read or written."""

    code = "ledger"


class KafkaFailure(BacklogError):
    """A broker or client call failed."""

    code = "kafka"


class ClusterUnreachable(KafkaFailure):
    """No broker answered within the time limit."""

    code = "unreachable"
    retryable = True


class HangingTransaction(KafkaFailure):
    """An open transaction of somebody else hides ledger records; nothing was sent."""

    code = "hanging_transaction"


class ProducerFenced(KafkaFailure):
    """A newer producer with this transactional.id fenced this one, which wrote no more."""

    code = "fenced"


class SourceError(BacklogError):
    """The source database could not be read, or is not what the configuration says."""

    code = "source"


class StagingError(BacklogError):
    """Staged messages are missing, damaged or not those of the plan."""

    code = "staging"


class NotificationFailed(BacklogError):
    """A hook did not take a message."""

    code = "notification"
    retryable = True


class VerificationFailed(BacklogError):
    """What was read back is not what was staged."""

    code = "verification_failed"


class EmbeddedError(BacklogError):
    """The embedded Kafka could not be fetched, started or stopped."""

    code = "embedded"
