"""What is stored may be of another version, or hold what nobody may see: a page is shown all the same."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog.numbers import format_moment
from backlog.values import Recovery, RecoveryState
from monitoring.details import tell_detail
from monitoring.page.app import HEADERS
from monitoring.page.guards import make_headers
from monitoring.page.plans import tell_plan
from monitoring.page.progress import measure_progress
from monitoring.page.recoveries import _tell_time
from tests.monitoring.page.night import NOW, Night
from tests.monitoring.page.visits import read, serve, strip
from tests.replay.expand_makers import make_expand_plan
from tests.replay.makers import make_plan

PAYLOAD = "card=4111111111111111"


@pytest.mark.parametrize("kind", ["expand", "rebuild", "drain"])
@pytest.mark.parametrize("state", ["planned", "failed"])
def test_a_plan_of_another_version_is_shown_as_far_as_it_is_known(
    quiet: Night, kind: str, state: str
) -> None:
    recovery = quiet.plan(kind, "orders", {"warnings": ["beware"], "future": 1, "outcome": None})
    if state == "failed":
        quiet.approve(recovery)
        quiet.advance(recovery, RecoveryState.RUNNING)
        quiet.advance(recovery, RecoveryState.FAILED)
    assert "beware" in strip(read(quiet, f"/recoveries/{recovery.id}"))
    for path in ("/", "/streams/orders"):
        assert recovery.id in strip(read(quiet, path))


def list_places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a plan."""
    inside: Any = ()
    if isinstance(value, dict):
        inside = value.items()
    elif isinstance(value, list):
        inside = enumerate(value)
    for name, item in inside:
        yield (*at, name)
        yield from list_places(item, (*at, name))


PLANS: Mapping[str, dict[str, Any]] = {"expand": make_expand_plan(), "rebuild": make_plan()}


@given(
    st.sampled_from([(kind, at) for kind, plan in PLANS.items() for at in list_places(plan)]),
    st.sampled_from([None, "", "text", -1, 0, 1.5, [], [None], {}, True]),
)
def test_whatever_stands_in_a_plan_it_is_told(place: tuple[str, tuple[Any, ...]], odd: Any) -> None:
    kind, (*way, last) = place
    plan = copy.deepcopy(PLANS[kind])
    inside: Any = plan
    for name in way:
        inside = inside[name]
    inside[last] = odd
    recovery = Recovery(
        id="r-1",
        kind=kind,
        stream="orders",
        cluster="main",
        topic="orders",
        group="service",
        state=RecoveryState.RUNNING,
        plan=plan,
        plan_hash="",
        created_at=NOW,
    )
    tell_plan(recovery)
    measure_progress(recovery, now=NOW)


def test_a_time_that_cannot_be_read_is_told_as_it_is() -> None:
    for tell_time in (format_moment, _tell_time):
        assert tell_detail({"expires_at": "in a while"}, tell_time) == "expires in a while"


def test_the_text_of_an_error_of_the_program_is_not_shown(quiet: Night) -> None:
    recovery = quiet.plan("rebuild", "orders", make_plan())
    quiet.approve(recovery)
    quiet.advance(recovery, RecoveryState.RUNNING)
    told = {"code": "bug", "message": f"ValueError: {PAYLOAD}", "subject": "", "step": "inject"}
    quiet.advance(recovery, RecoveryState.FAILED, **told)
    for path in (f"/recoveries/{recovery.id}", "/", "/streams/orders"):
        assert PAYLOAD not in read(quiet, path)
    words = strip(read(quiet, f"/recoveries/{recovery.id}"))
    assert words.count("an error of the program") == 2, "at the top, and in the record"
    assert "at step inject" in words


def test_a_fault_of_the_program_has_a_page_and_its_headers(
    quiet: Night, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Recovery) -> list[str]:
        raise RuntimeError(PAYLOAD)

    recovery = quiet.plan("rebuild", "orders", make_plan())
    client = serve(quiet, next_commands=fail)
    for path in ("/", "/streams/orders", f"/recoveries/{recovery.id}"):
        with caplog.at_level(logging.ERROR):
            answer = client.get(path)
        assert answer.status_code == 500
        assert "This page cannot be made" in answer.text
        assert PAYLOAD not in answer.text
        assert "Traceback" not in answer.text
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
        assert f"the page at {path!r}" in caplog.text


def test_it_may_be_shown_in_the_frames_that_are_named(quiet: Night) -> None:
    sites = ("'self'", "https://wiki.example:8443")
    told = serve(quiet, frame_ancestors=sites).get("/").headers["content-security-policy"]
    assert told.endswith("frame-ancestors 'self' https://wiki.example:8443")
    assert make_headers(())["Content-Security-Policy"].endswith("frame-ancestors 'none'")
    for wrong in ("", "a b", "*; script-src *", "a,b"):
        with pytest.raises(ValueError, match="frame_ancestors"):
            make_headers([wrong])
