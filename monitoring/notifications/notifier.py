"""Tells hooks of changes: each has a thread that sends what waits, and tries again.

Sampling never waits for it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Self

from backlogctl.clock import utc_now
from backlogctl.config import Hook, mask_secrets
from backlogctl.errors import BacklogError, NotificationFailed
from backlogctl.monitoring.notifications.changes import Change, Damper, Mailbox, StreamObservation
from backlogctl.monitoring.notifications.messages import (
    DeliveryResult,
    DeliveryStatus,
    MessageContext,
    Notification,
    WebhookClient,
)
from backlogctl.monitoring.offsets.sampler import StreamLike
from backlogctl.monitoring.verdict.status import GroupStatus, Verdict
from backlogctl.monitoring.watch.loop import OnOutage
from backlogctl.values import to_document

LOG = logging.getLogger(__name__)

REPLACED = "replaced"
OUTCOMES = (*map(str, DeliveryStatus), REPLACED)
FAILS_AFTER = 3
MOST_SECONDS = 600.0  # that a hook may ask for by Retry-After
_LOOK_SECONDS = 1.0
_STOP_SECONDS = 5.0

FindContext = Callable[[StreamObservation], MessageContext]


@dataclass(frozen=True, slots=True)
class Pauses:
    """Seconds after the first failure, the second and so on; after a refusal.

    After the third failure it is said that the hook fails; it is tried on and on.
    """

    failed: Sequence[float] = (1.0, 3.0, 30.0, 60.0, 120.0, 300.0)
    refused: float = 300.0

    def after(self, failures: int, asked: float) -> float:
        """Seconds until the next try, not all hooks at once; at least what the hook asked for."""
        pause = self.failed[min(failures, len(self.failed)) - 1] * random.uniform(0.8, 1.2)
        return max(pause, min(asked, MOST_SECONDS))


DEFAULT_PAUSES = Pauses()


def _find_commands(look: StreamObservation) -> MessageContext:
    return MessageContext(() if look.status is None else look.status.next_commands)


class Notifier:
    """Tells hooks of changes while the `with` block runs.

    `note` and `note_failure` are called by the loop over the streams and never wait for a hook.

    Args:
        on_outage: called with a hook that fails when that begins, and when it ends, by its thread.
        find_context: what is known beside a look. Called in a hook's thread.
        clock: the time of a look that failed; the ledger's, as that of samples.
    """

    def __init__(
        self,
        hooks: Mapping[str, Hook],
        on_outage: OnOutage,
        find_context: FindContext = _find_commands,
        clock: Callable[[], datetime] = utc_now,
        pauses: Pauses = DEFAULT_PAUSES,
    ) -> None:
        self._clock = clock
        self._dampers: defaultdict[str, Damper] = defaultdict(Damper)
        self._deliveries = [
            _Delivery(name, hook, on_outage, find_context, pauses) for name, hook in hooks.items()
        ]

    def __enter__(self) -> Self:
        for delivery in self._deliveries:
            delivery.thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        for delivery in self._deliveries:
            delivery.stop()
        end = time.monotonic() + _STOP_SECONDS
        for delivery in self._deliveries:
            # It may wait for a hook that hangs; as a daemon it ends with the process.
            delivery.thread.join(max(0.0, end - time.monotonic()))

    def note(self, status: GroupStatus) -> None:
        self._note(StreamObservation.of_status(status))

    def note_failure(self, stream: StreamLike, error: BacklogError) -> None:
        self._note(StreamObservation.of_failure(stream, mask_secrets(str(error)), self._clock()))

    def count(self) -> Mapping[tuple[str, str], int]:
        """How often what came of messages, by hook and outcome."""
        return {
            (delivery.name, outcome): delivery.counts[outcome]
            for delivery in self._deliveries
            for outcome in OUTCOMES
        }

    def _note(self, look: StreamObservation) -> None:
        if self._dampers[look.stream].count(look):
            for delivery in self._deliveries:
                if delivery.hook.is_for(look.stream):
                    delivery.mailbox.put(look)


class _Delivery:
    """Tells one hook while its thread runs, and says once that it fails."""

    def __init__(
        self, name: str, hook: Hook, on_outage: OnOutage, find_context: FindContext, pauses: Pauses
    ) -> None:
        self.name = name
        self.hook = hook
        # Outcomes are counted by this thread, what is replaced by the loop over the streams.
        self.counts: Counter[str] = Counter()
        count_replaced = partial(self.counts.update, (REPLACED,))
        self.mailbox = Mailbox(Verdict(hook.from_), hook.resolves_alerts, count_replaced)
        self.thread = threading.Thread(target=self._run, name=f"backlog-hook-{name}", daemon=True)
        self._on_outage = on_outage
        self._find_context = find_context
        self._pauses = pauses
        self._client = WebhookClient(hook)
        self._stop = threading.Event()
        self._failures = 0
        self._is_out = False

    def stop(self) -> None:
        """Asks the thread to end: what waits is tried once more, until a try fails."""
        self._stop.set()
        self.mailbox.wake()

    def _run(self) -> None:
        while True:
            is_last = self._stop.is_set()
            change = self.mailbox.take()
            if change is None:
                if is_last:
                    return
                self.mailbox.wait(_LOOK_SECONDS)
                continue
            answer = self._send(change)
            self.counts[answer.outcome] += 1
            if answer.outcome is DeliveryStatus.DELIVERED:
                self.mailbox.note_delivered(change)
                self._note_success()
            elif is_last:
                return
            else:
                self._note_failure(change, answer)

    def _send(self, change: Change) -> DeliveryResult:
        try:
            context = self._find_context(change.look)
            return self._client.post(Notification.of_change(change, context))
        except Exception as error:  # noqa: BLE001 - a bug must not end the messages in silence
            # Without its text, which may hold what is secret.
            return DeliveryResult(
                DeliveryStatus.FAILED, f"internal error ({type(error).__name__}); report it"
            )

    def _note_success(self) -> None:
        self._failures = 0
        if self._is_out and not self.mailbox.has_tried():
            self._is_out = False
            self._report(None)

    def _note_failure(self, change: Change, answer: DeliveryResult) -> None:
        is_refused = answer.outcome is DeliveryStatus.REFUSED
        self.mailbox.note_failed(change, self._pauses.refused if is_refused else 0.0)
        self._failures += not is_refused
        if not self._is_out and (is_refused or self._failures >= FAILS_AFTER):
            self._is_out = True
            hint = "it is tried on; `backlogctl watch --test-hooks` tells what it answers"
            self._report(NotificationFailed(answer.reason, hint=hint))
        if not is_refused:
            self._stop.wait(self._pauses.after(self._failures, answer.retry_after))

    def _report(self, error: BacklogError | None) -> None:
        try:
            self._on_outage(f"hook {self.name}", error)
        except Exception:
            LOG.exception("an outage of hook %s was not reported", self.name)


@dataclass(frozen=True, slots=True)
class HookCheck:
    """What a hook made of a test message; `reason` is "" where it took it."""

    hook: str
    kind: str
    outcome: DeliveryStatus
    reason: str

    def to_json(self) -> dict[str, Any]:
        return to_document(self)


def check_hooks(hooks: Mapping[str, Hook]) -> tuple[HookCheck, ...]:
    """Sends a test message to each hook, once; what is not taken is not tried again."""
    checks = []
    for name, hook in hooks.items():
        answer = WebhookClient(hook).post(Notification.of_test(name))
        checks.append(HookCheck(name, hook.kind, answer.outcome, answer.reason))
    return tuple(checks)
