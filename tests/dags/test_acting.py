"""How what went wrong is told to Airflow: with another try only where that may help."""

from __future__ import annotations

import pytest

from backlogctl_airflow.reasons import RunbookError, RunbookRefusal, translated_errors
from replay.recovery.brakes import CANARY, INTERRUPTED, PausedBecause


def test_a_slow_canary_is_not_tried_again() -> None:
    """It would be as slow, over and over, while nobody reads the topic."""
    told = r"recovery r-1: it is slow. It ends here, and the layout is given back"
    with pytest.raises(RunbookRefusal, match=told), translated_errors():
        raise PausedBecause(CANARY, "it is slow", subject="recovery r-1", hint="resume it")


def test_an_interrupted_task_is_tried_again() -> None:
    with pytest.raises(RunbookError, match="it stopped"), translated_errors():
        raise PausedBecause(INTERRUPTED, "it stopped", subject="recovery r-1")
