"""A part of a recovery that can be started, completed and rolled back."""

from __future__ import annotations

from typing import Protocol, TypeVar

ContextT_contra = TypeVar("ContextT_contra", contravariant=True)


class Step(Protocol[ContextT_contra]):
    """One reversible step: four verbs side by side, each safe to call again after a crash."""

    name: str

    def validate(self, context: ContextT_contra) -> None:
        """Looks, changes nothing; raises where the step must not start."""

    def start(self, context: ContextT_contra) -> None:
        """Does the work; goes on where an earlier start was killed."""

    def complete(self, context: ContextT_contra) -> None:
        """Closes the step: checks its result and records it."""

    def rollback(self, context: ContextT_contra) -> None:
        """Takes back what start did, as far as it can be taken back, and never loses a message."""
