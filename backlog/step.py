"""A part of a recovery that can be started, completed and rolled back."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

Context = TypeVar("Context", contravariant=True)


class Step(Protocol, Generic[Context]):
    """One reversible step: four verbs side by side, each safe to call again after a crash."""

    name: str

    def validate(self, context: Context) -> None:
        """Looks, changes nothing; raises where the step must not start."""

    def start(self, context: Context) -> None:
        """Does the work; goes on where an earlier start was killed."""

    def complete(self, context: Context) -> None:
        """Closes the step: checks its result and records it."""

    def rollback(self, context: Context) -> None:
        """Takes back what start did, as far as it can be taken back, and never loses a message."""
