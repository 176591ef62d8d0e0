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
    # State of the recovery that this ended, as JSON; not sent to other processes.
    standing: Mapping[str, Any] | None = None
    # What an operator would type next about that recovery; decided in one place.
    next_commands: tuple[str, ...] = ()

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
    """A call with something it cannot take."""

    code = "usage"
    exit_code = 2


class ConfigurationError(BacklogError):
    """A setting is wrong."""

    code = "configuration"
    exit_code = 2


class Refused(BacklogError):
    """A guard refused; nothing was changed."""

    code = "refused"
    exit_code = 5


class KafkaFailure(BacklogError):
    """A broker or client call failed."""

    code = "kafka"


class ClusterUnreachable(KafkaFailure):
    """No broker answered within the time limit."""

    code = "unreachable"
    retryable = True
