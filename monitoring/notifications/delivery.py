"""One hook's thread: it sends what waits, tries again, and says once that a hook fails.

Sampling never waits for it.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from backlog.config import Hook
from backlog.errors import BacklogError, NotificationFailed
from monitoring.notifications.mailbox import Mailbox, Notice
from monitoring.notifications.messages import Told, write_message
from monitoring.notifications.posting import Answer, Line, Outcome
from monitoring.notifications.settling import Seen
from monitoring.verdicts import Verdict

LOG = logging.getLogger("backlog.monitoring.notifications")

# Seconds between tries. After the third it is said that the hook fails; it is tried on and on.
PAUSES = (1.0, 3.0, 30.0, 60.0, 120.0, 300.0)
FAILS_AFTER = 3
MOST_SECONDS = 600.0  # that a hook may ask for by Retry-After
REFUSED_SECONDS = 300.0
_LOOK_SECONDS = 1.0

REPLACED = "replaced"
OUTCOMES = (*map(str, Outcome), REPLACED)

# Called with what fails and why when that begins, and with None when it ends.
OnOutage = Callable[[str, BacklogError | None], None]
FindTold = Callable[[Seen], Told]


class Counts:
    """How often what came of messages, by hook and outcome; thread-safe."""

    def __init__(self, hooks: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._counts = Counter({(hook, outcome): 0 for hook in hooks for outcome in OUTCOMES})

    def add(self, hook: str, outcome: str) -> None:
        with self._lock:
            self._counts[hook, outcome] += 1

    def read(self) -> Mapping[tuple[str, str], int]:
        with self._lock:
            return dict(self._counts)


@dataclass(frozen=True, slots=True)
class Pauses:
    """How long is waited: after the first failure, the second and so on; after a refusal."""

    failed: Sequence[float] = PAUSES
    refused: float = REFUSED_SECONDS

    def after(self, failures: int, asked: float) -> float:
        """Seconds until the next try, not all hooks at once; at least what the hook asked for."""
        pause = self.failed[min(failures, len(self.failed)) - 1] * random.uniform(0.8, 1.2)
        return max(pause, min(asked, MOST_SECONDS))


class Delivery:
    """Tells one hook while its thread runs."""

    def __init__(
        self,
        name: str,
        hook: Hook,
        counts: Counts,
        on_outage: OnOutage,
        find_told: FindTold,
        pauses: Pauses,
    ) -> None:
        self.mailbox = Mailbox(
            Verdict(hook.from_),
            resolves_first=hook.pagerduty is not None,
            on_replaced=lambda: counts.add(name, REPLACED),
        )
        self._name = name
        self._hook = hook
        self._counts = counts
        self._on_outage = on_outage
        self._find_told = find_told
        self._pauses = pauses
        self._line = Line(hook.reveal_url(), hook.timeout.total_seconds())
        self._stop = threading.Event()
        self._failures = 0
        self._is_out = False
        self.thread = threading.Thread(target=self._run, name=f"backlog-hook-{name}", daemon=True)

    def stop(self) -> None:
        """Asks the thread to end: what waits is tried once more, until a try fails."""
        self._stop.set()
        self.mailbox.wake()

    def _run(self) -> None:
        while True:
            is_last = self._stop.is_set()
            notice = self.mailbox.take()
            if notice is None:
                if is_last:
                    return
                self.mailbox.wait(_LOOK_SECONDS)
                continue
            answer = self._send(notice)
            self._counts.add(self._name, answer.outcome)
            if answer.outcome is Outcome.DELIVERED:
                self.mailbox.note_delivered(notice)
                self._note_success()
            elif is_last:
                return
            else:
                self._note_failure(notice, answer)

    def _send(self, notice: Notice) -> Answer:
        try:
            message = write_message(self._hook, notice, self._find_told(notice.seen))
            return self._line.post(message)
        except Exception as error:  # noqa: BLE001 - a bug must not end the messages in silence
            # Without its text, which may hold what is secret.
            return Answer(Outcome.FAILED, f"a fault of the program: {type(error).__name__}")

    def _note_success(self) -> None:
        self._failures = 0
        if self._is_out and not self.mailbox.has_tried():
            self._is_out = False
            self._report(None)

    def _note_failure(self, notice: Notice, answer: Answer) -> None:
        is_refused = answer.outcome is Outcome.REFUSED
        self.mailbox.note_failed(notice, self._pauses.refused if is_refused else 0.0)
        self._failures += not is_refused
        if not self._is_out and (is_refused or self._failures >= FAILS_AFTER):
            self._is_out = True
            hint = "it is tried on; `backlogctl watch --test-hooks` tells what it answers"
            self._report(NotificationFailed(answer.reason, hint=hint))
        if not is_refused:
            self._stop.wait(self._pauses.after(self._failures, answer.retry_after))

    def _report(self, error: BacklogError | None) -> None:
        try:
            self._on_outage(f"hook {self._name}", error)
        except Exception:
            LOG.exception("an outage of hook %s was not reported", self._name)
