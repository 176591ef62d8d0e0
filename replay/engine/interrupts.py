"""Ctrl-C and SIGTERM while a recovery runs."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Seconds after which an interrupt comes again that Python could not raise where it was.
_AGAIN = 0.1


class Interrupts:
    """Ctrl-C or SIGTERM ends the run at once; where work is deferred, the first one is only noted,
    and stops it between two waves.

    Args:
        once: the first one raises, and no further one disturbs what is cleaned up after it.

    Attributes:
        asked: somebody wants this run to end.
    """

    def __init__(self, *, once: bool = False) -> None:
        self.asked = False
        self._once = once
        self._is_lost = False
        self._is_deferring = False
        self._is_in_hook = False
        self._again: threading.Timer | None = None
        self._print_lost = sys.unraisablehook

    @contextmanager
    def installed(self) -> Iterator[None]:
        """While the run goes on; outside of the main thread it does nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(number, self._note) for number in numbers]
        hook, sys.unraisablehook = sys.unraisablehook, self._note_lost
        self._print_lost = hook
        try:
            yield
        finally:
            sys.unraisablehook = hook
            try:
                if self._again is not None:
                    self._again.cancel()
                    # One that is on its way comes here, not after its handler has gone.
                    self._again.join()
            finally:
                for number, handler in zip(numbers, before, strict=True):
                    signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """While something is written that should be brought to an end."""
        before, self._is_deferring = self._is_deferring, True
        try:
            yield
        finally:
            self._is_deferring = before

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Raises an interrupt as what it is, where native code made a SystemError of it.

        CPython does so where native code calls Python code and does not look at what that raised:
        "returned a result with an exception set" (seen of `describe_topics`, confluent-kafka 2.16).
        """
        try:
            yield
        except SystemError:
            if not self.asked:
                raise
            raise KeyboardInterrupt from None

    def _note(self, number: int, frame: FrameType | None) -> None:
        is_first, self.asked = not self.asked, True
        # What is raised in the hook is printed and lost for good; one comes when it is over.
        if self._is_in_hook or (is_first and self._is_deferring):
            return
        if self._once and not (is_first or self._is_lost):
            return
        self._is_lost = False
        raise KeyboardInterrupt

    def _note_lost(self, lost: sys.UnraisableHookArgs) -> None:
        """In a finalizer, or a callback of an import, Python prints what is raised and goes on."""
        if lost.exc_type is not KeyboardInterrupt:
            self._print_lost(lost)
            return
        self._is_in_hook = self._is_lost = True
        try:
            again = threading.Timer(_AGAIN, self._come_again)
            again.daemon = True
            again.start()
            self._again = again  # what was not started cannot be waited for
        finally:
            self._is_in_hook = False

    def _come_again(self) -> None:
        while self._is_in_hook:
            time.sleep(_AGAIN)
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)
