"""Values as JSON documents, and the tone of each word."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from backlogctl.monitoring.doctor.checks import CheckLevel
from backlogctl.monitoring.verdict.status import Verdict
from backlogctl.replay.present.tones import STYLES, find_tone
from backlogctl.values import GapState, RecoveryState, to_document, to_plain

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Inner:
    at: datetime | None
    state: GapState


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner
    parts: tuple[Inner, ...]
    detail: dict[str, Any]

    @property
    def count(self) -> int:
        return len(self.parts)


def test_a_document_is_plain_json() -> None:
    inner = Inner(NOON, GapState.OPEN)
    made = to_document(Outer("a", inner, (inner, Inner(None, GapState.WAIVED)), {"at": NOON}))
    first = {"at": "2026-11-21T12:00:00.000000Z", "state": "open"}
    assert made == {
        "name": "a",
        "inner": first,
        "parts": [first, {"at": None, "state": "waived"}],
        "detail": {"at": first["at"]},
    }
    assert json.loads(json.dumps(made)) == made
    assert type(made["inner"]["state"]) is str


def test_a_document_of_some_attributes_has_properties_too() -> None:
    outer = Outer("a", Inner(None, GapState.OPEN), (), {})
    assert to_document(outer, "name", "count") == {"name": "a", "count": 0}
    assert to_plain(None) is None


def test_every_verdict_state_and_level_has_a_tone_of_its_own() -> None:
    words = [*Verdict, *RecoveryState, *GapState, *CheckLevel]
    assert {str(word) for word in words if find_tone(word) == "calm"} == {
        *("lagging", "planned", "approved", "staged", "injected"),
    }
    assert all(find_tone(word) in STYLES for word in words)
    assert find_tone("no deadline") == find_tone("no_deadline") == "dim"
