"""Ctrl-C and SIGTERM, as real signals to this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from backlogctl.replay.engine import interrupts as room
from backlogctl.replay.engine.interrupts import Interrupts
from tests.replay.shop import ROOT

NUMBERS = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize("number", NUMBERS)
def test_work_is_interrupted_at_once(number: signal.Signals) -> None:
    interrupts = Interrupts()
    with interrupts.installed(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)
    assert interrupts.asked


@pytest.mark.parametrize("number", NUMBERS)
def test_deferred_work_notes_the_first_and_ends_with_the_second(number: signal.Signals) -> None:
    interrupts = Interrupts()
    with interrupts.installed():
        with interrupts.deferred():
            os.kill(os.getpid(), number)
            assert interrupts.asked
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("slow", [False, True])
def test_what_python_cannot_raise_comes_again(
    number: signal.Signals,
    slow: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in the callback of an import, where it would only be printed."""
    ended = []

    class Finalized:
        def __del__(self) -> None:
            try:
                os.kill(os.getpid(), number)
                time.sleep(0)  # the handler runs here
            finally:
                ended.append("the finalizer")

    def start_slowly(timer: threading.Timer) -> None:
        """It is due before the hook that starts it has ended."""
        threading.Thread.start(timer)
        end = time.monotonic() + 3 * room._AGAIN
        while time.monotonic() < end:
            time.sleep(0.01)

    def work() -> None:
        Finalized()
        time.sleep(30)
        ended.append("the work")

    if slow:
        monkeypatch.setattr(threading.Timer, "start", start_slowly)
    interrupts = Interrupts()
    with interrupts.installed(), pytest.raises(KeyboardInterrupt):
        work()
    assert (interrupts.asked, ended) == (True, ["the finalizer"])
    assert capsys.readouterr().err == ""


def test_what_comes_again_at_the_very_end_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is due when the work has ended: nothing comes after the handlers were given back."""
    is_due = threading.Event()

    class Finalized:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0)  # the handler runs here

    def work() -> None:
        Finalized()
        assert is_due.wait(30)

    def come_late(interrupts: Interrupts) -> None:
        is_due.set()
        time.sleep(3 * room._AGAIN)
        come_again(interrupts)

    come_again = Interrupts._come_again
    monkeypatch.setattr(Interrupts, "_come_again", come_late)
    theirs: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: theirs.append(number))
    try:
        with pytest.raises(KeyboardInterrupt), Interrupts().installed():
            work()
        time.sleep(5 * room._AGAIN)
    finally:
        signal.signal(signal.SIGINT, before)
    assert theirs == []


def test_other_errors_that_python_cannot_raise_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Finalized:
        def __del__(self) -> None:
            raise ValueError

    lost: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: lost.append(args.exc_type))
    with Interrupts().installed():
        Finalized()
    assert lost == [ValueError]


def test_handlers_are_given_back() -> None:
    before = [signal.getsignal(number) for number in NUMBERS]
    with Interrupts().installed():
        assert [signal.getsignal(number) for number in NUMBERS] != before
    assert [signal.getsignal(number) for number in NUMBERS] == before


def test_outside_of_the_main_thread_nothing_is_touched() -> None:
    before = [signal.getsignal(number) for number in NUMBERS]
    seen: list[object] = []

    def work() -> None:
        with Interrupts().installed():
            seen.extend(signal.getsignal(number) for number in NUMBERS)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == before


def test_an_interrupt_in_the_middle_of_a_class_keeps_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "interrupted.py").write_text("""
import sys
from backlogctl.replay import cli

def app(*_, **__):
    try:
        exec("raise KeyboardInterrupt")
    except KeyboardInterrupt:
        return 4

cli.app = app
sys.exit(cli.main([]))
""")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    words = [sys.executable, "-m", "interrupted"]
    assert (
        subprocess.run(words, env={**os.environ, "PYTHONPATH": path}, check=False).returncode == 4
    )
