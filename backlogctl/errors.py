"""The tool's errors beside those of `backlogctl_delivery`, which has their root."""

from __future__ import annotations

from backlogctl_delivery.errors import (
    BacklogError,
    ClusterUnreachable,
    ConfigurationError,
    KafkaFailure,
    Refused,
    UsageError,
)

__all__ = [  # beside those below
    "BacklogError",
    "ClusterUnreachable",
    "ConfigurationError",
    "KafkaFailure",
    "Refused",
    "UsageError",
]


class ApprovalNeeded(BacklogError):
    """The recovery is not approved, or its approval is expired or for another plan."""

    code = "approval_needed"
    exit_code = 3


class Paused(BacklogError):
    """The work stopped between two chunks and will go on: pause, or outside the window."""

    code = "paused"
    exit_code = 4
    retryable = True


class PutBackAlready(Refused):
    """There is nothing to put back: an earlier recovery has put all of it back."""


class PlanStale(Refused):
    """Kafka or the ledger is no longer what the plan was made on: plan again."""

    code = "plan_stale"


class KafkaLedgerLost(PlanStale):
    """What says which messages were sent is gone: a new plan is refused, too, until a person has
    decided about that."""

    code = "kafka_ledger_lost"


class RewindRefused(Refused):
    """The group cannot be set back, so a recovery cannot be cancelled by that."""

    code = "rewind_refused"


class UnreadLeft(Refused):
    """Messages are unread that nobody is started to handle; the group can be set back to them."""

    code = "unread_left"


class ConsumersLeft(BacklogError):
    """Consumers could not be started or ended: a person does it; all else is given back."""

    code = "consumers_left"


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


class HangingTransaction(KafkaFailure):
    """An open transaction of somebody else hides ledger records; nothing was sent."""

    code = "hanging_transaction"


class ProducerFenced(KafkaFailure):
    """The brokers ended this producer's epoch: a newer one with its transactional.id did so, or its
    transaction timed out. INVALID_PRODUCER_EPOCH is said of both; it wrote no more."""

    code = "fenced"


class SourceError(BacklogError):
    """The source database could not be read, or is not what the configuration says."""

    code = "source"


class StagingError(BacklogError):
    """Staged messages are missing, damaged or not those of the plan."""

    code = "staging"


class StagingChanged(StagingError):
    """Staged messages are there, and are not those that were approved."""

    code = "staging_changed"


class NotificationFailed(BacklogError):
    """A hook did not take a message."""

    code = "notification"
    retryable = True


class VerificationFailed(BacklogError):
    """What was read back is not what was staged; where it is `retryable`, that is not known yet."""

    code = "verification_failed"


class EmbeddedError(BacklogError):
    """The embedded Kafka could not be fetched, started or stopped."""

    code = "embedded"
