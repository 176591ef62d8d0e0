"""What is stored may be changed, or hold what nobody may see: a page is shown all the same."""

from __future__ import annotations

import copy
import io
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from backlogctl.config import Config
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.kinds import KINDS
from backlogctl.replay.present.progress import format_detail
from backlogctl.replay.present.status import describe_recovery, describe_recovery_plan
from backlogctl.replay.present.terminal import render_plan
from backlogctl.replay.web.page.app import HEADERS, make_headers
from backlogctl.values import Recovery, RecoveryState
from tests.replay.expand_makers import make_expand_plan
from tests.replay.makers import make_rebuild_plan, make_recovery
from tests.replay.web.page.night import NOW, Night
from tests.replay.web.page.visits import read, serve, strip

# Names no stream: plans are told as they are stored.
CONFIG = Config.from_text("{}", Path())
PAYLOAD = "card=4111111111111111"


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


PLANS: Mapping[str, dict[str, Any]] = {
    "expand": make_expand_plan().dump(),
    "rebuild": make_rebuild_plan(
        gaps=[{"id": "g-1", "partition": 0, "start": 1, "end": 5}],
        off_peak={"from": "00:30", "to": "06:00", "timezone": "UTC"},
    ).dump(),
}


@given(
    st.sampled_from([(kind, at) for kind, plan in PLANS.items() for at in list_places(plan)]),
    st.sampled_from([None, "", "text", -1, 0, 1.5, [], [None], {}, True]),
)
@example(("expand", ("version",)), [])
@example(("rebuild", ("options", "allow")), 1.5)
@example(("expand", ("options", "allow")), "text")
def test_whatever_stands_in_a_plan_it_is_told_or_refused(
    place: tuple[str, tuple[Any, ...]], odd: Any
) -> None:
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
    # Neither is asked: only the plan is read.
    workspace = Workspace(CONFIG, cast("Any", None), KINDS)
    document = describe_recovery(workspace, recovery)
    if "problem" in document:
        assert document["plan"] == plan
        return
    drawn = io.StringIO()
    Console(file=drawn, width=100).print(
        render_plan(recovery, describe_recovery_plan(workspace, recovery))
    )
    assert recovery.id in drawn.getvalue()


@pytest.mark.parametrize("kind", PLANS)
def test_the_same_plans_are_told_as_they_are(kind: str) -> None:
    """The test above would pass where every plan is refused."""
    plan = make_rebuild_plan() if kind == "rebuild" else make_expand_plan()
    workspace = Workspace(CONFIG, cast("Any", None), KINDS)
    document = describe_recovery(workspace, make_recovery(plan))
    assert "problem" not in document


def test_a_time_that_cannot_be_read_is_told_as_it_is() -> None:
    assert format_detail({"expires_at": "in a while"}) == "expires in a while"


def test_the_text_of_an_error_of_the_program_is_not_shown(quiet: Night) -> None:
    recovery = quiet.plan(make_rebuild_plan())
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
    quiet: Night, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Workspace, __: Recovery) -> list[str]:
        raise RuntimeError(PAYLOAD)

    for module in ("backlogctl.replay.web.page.app", "backlogctl.replay.present.document"):
        monkeypatch.setattr(f"{module}.list_next_commands", fail)
    recovery = quiet.plan(make_rebuild_plan())
    client = serve(quiet)
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
