"""All hooks: each look at a stream is shown to them, and each decides what it has to tell."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from backlog.clock import utc_now
from backlog.config import Hook, mask_secrets
from backlog.errors import BacklogError
from monitoring.notifications.delivery import (
    Counts,
    Delivery,
    FindTold,
    OnOutage,
    Pauses,
)
from monitoring.notifications.messages import Told, write_tests
from monitoring.notifications.posting import Answer, Line, Outcome
from monitoring.notifications.settling import Seen, Settling, describe_failure, describe_status
from monitoring.sampler import StreamLike
from monitoring.status import GroupStatus

_STOP_SECONDS = 5.0
DEFAULT_PAUSES = Pauses()


def _tell_status(seen: Seen) -> Told:
    return Told(() if seen.status is None else seen.status.next_commands)


class Notifier:
    """Tells hooks of changes while the `with` block runs.

    `note` and `note_failure` are called by the loop over the streams and never wait for a hook.

    Args:
        on_outage: called with a hook that fails when that begins, and when it ends, by its thread.
        find_told: what is known beside a look: next commands, pages. Called in a hook's thread.
        clock: the time of a look that failed; the ledger's, as that of samples.
    """

    def __init__(
        self,
        hooks: Mapping[str, Hook],
        on_outage: OnOutage,
        find_told: FindTold = _tell_status,
        clock: Callable[[], datetime] = utc_now,
        pauses: Pauses = DEFAULT_PAUSES,
    ) -> None:
        self.counts = Counts(tuple(hooks))
        self._clock = clock
        self._settlings: defaultdict[str, Settling] = defaultdict(Settling)
        self._deliveries = [
            (hook, Delivery(name, hook, self.counts, on_outage, find_told, pauses))
            for name, hook in hooks.items()
        ]

    def __enter__(self) -> Self:
        for _, delivery in self._deliveries:
            delivery.thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        for _, delivery in self._deliveries:
            delivery.stop()
        end = time.monotonic() + _STOP_SECONDS
        for _, delivery in self._deliveries:
            # It may wait for a hook that hangs; as a daemon it ends with the process.
            delivery.thread.join(max(0.0, end - time.monotonic()))

    def note(self, status: GroupStatus) -> None:
        """A stream was looked at."""
        self._note(describe_status(status))

    def note_failure(self, stream: StreamLike, error: BacklogError) -> None:
        """A stream could not be looked at."""
        self._note(describe_failure(stream, mask_secrets(str(error)), self._clock()))

    def _note(self, seen: Seen) -> None:
        counted = self._settlings[seen.stream].note(seen)
        if counted is None:
            return
        for hook, delivery in self._deliveries:
            if hook.is_for(seen.stream):
                delivery.mailbox.put(counted)


@dataclass(frozen=True, slots=True)
class Tested:
    """What a hook made of a test message; `reason` is "" where it took it."""

    hook: str
    kind: str
    outcome: Outcome
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {
            "hook": self.hook,
            "kind": self.kind,
            "outcome": str(self.outcome),
            "reason": self.reason,
        }


def check_hooks(hooks: Mapping[str, Hook]) -> tuple[Tested, ...]:
    """Sends a test message to each hook, once; what is not taken is not tried again."""
    return tuple(_check_hook(name, hook) for name, hook in hooks.items())


def _check_hook(name: str, hook: Hook) -> Tested:
    line = Line(hook.reveal_url(), hook.timeout.total_seconds())
    answer = Answer(Outcome.DELIVERED)
    for message in write_tests(hook, name):
        if answer.outcome is Outcome.DELIVERED:
            answer = line.post(message)
    return Tested(name, hook.kind, answer.outcome, answer.reason)
