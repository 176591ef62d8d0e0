"""The thread that passes over all groups, whatever fails in it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from backlog.clock import utc_now
from backlog.config import root
from backlog.errors import BacklogError, ClusterUnreachable
from monitoring.board import Board, ClusterPass
from monitoring.groups.sampling import GroupSampler
from monitoring.groups.survey import SurveyScope


@dataclass
class Survey:
    """Passes that fail as long as there is an error."""

    error: BacklogError | None = None
    scope: SurveyScope = field(default_factory=lambda: SurveyScope("main"))
    closed: bool = False

    def look(self) -> ClusterPass:
        if self.error:
            raise self.error
        return ClusterPass("main", utc_now(), 0.1, ())

    def close(self) -> None:
        self.closed = True


def test_what_fails_after_a_pass_does_not_end_the_passes() -> None:
    survey, board, told = Survey(), Board(), []
    failed, ended = threading.Semaphore(0), threading.Event()
    broken = True

    def on_pass() -> None:
        if broken:
            failed.release()
            raise ZeroDivisionError

    def on_outage(_: str, error: BacklogError | None) -> None:
        told.append(error)
        if error is None:
            ended.set()
        raise BrokenPipeError

    with GroupSampler(survey, board, timedelta(milliseconds=1), on_pass, on_outage) as sampler:
        for _ in range(3):
            assert failed.acquire(timeout=60)
        broken = False
        assert ended.wait(60)
        assert sampler.thread.is_alive()
        sampler.stop()
        sampler.thread.join(60)
    assert survey.closed
    assert "ZeroDivisionError" in str(told[0])
    assert told[1:] == [None]
    assert board.seen.failures[("main", "")] >= 3


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root, "_SECRETS", {"open-sesame"})
    board, told = Board(), threading.Event()
    survey = Survey(ClusterUnreachable("no answer with open-sesame"))

    def on_outage(_: str, __: BacklogError | None) -> None:
        told.set()

    with GroupSampler(survey, board, timedelta(seconds=9), lambda: None, on_outage):
        assert told.wait(60)
    (text,) = board.seen.failing.values()
    assert "no answer with ***" in text
