"""A part of a recovery that can be started again after a crash, and completed."""

from __future__ import annotations

from typing import Generic, TypeVar

ContextT_contra = TypeVar("ContextT_contra", contravariant=True)


class Step(Generic[ContextT_contra]):
    """One step: three verbs side by side, each safe to call again after a crash.

    A verb that a step does not define does nothing. What takes back what the steps did is the
    kind's own `close`, which `cancel` drives.
    """

    name: str

    def validate(self, context: ContextT_contra) -> None:
        """Looks, changes nothing; raises where the step must not start."""

    def start(self, context: ContextT_contra) -> None:
        """Does the work; goes on where an earlier start was killed."""

    def complete(self, context: ContextT_contra) -> None:
        """Closes the step: checks its result and records it."""
