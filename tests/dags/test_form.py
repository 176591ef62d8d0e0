"""The form of `recover_backlog`: what it takes is what the tasks take."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Param
from airflow.sdk.exceptions import ParamValidationError
from hypothesis import given
from hypothesis import strategies as st

from backlog.config import Config
from backlog.config.outline import Outline, StreamOutline
from backlog.errors import UsageError
from backlogctl_airflow.form import make_form
from replay.runbooks.requests import ACTIONS, RecoveryRequest, read_request
from tests.replay.runbooks.desks import open_shop

OUTLINE = Outline(
    Path("backlog.yaml"), tuple(StreamOutline(n, True, None) for n in ("orders", "mails"))
)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return open_shop(tmp_path_factory.mktemp("form")).config


def fill(**values: Any) -> dict[str, Any]:
    """The form as a run gets it: its schema is checked, defaults are filled in."""
    form = make_form(OUTLINE)
    return {
        name: param.resolve(values[name]) if name in values else param.resolve()
        for name, param in form.items()
    }


def test_it_has_every_field_of_a_request_and_no_other() -> None:
    assert set(make_form(OUTLINE)) == set(RecoveryRequest.__dataclass_fields__)


def test_untouched_it_is_a_request(config: Config) -> None:
    assert read_request(config, fill()) == RecoveryRequest("orders")


def test_every_action_has_words(config: Config) -> None:
    action = make_form(OUTLINE)["action"]
    assert set(action.schema["values_display"]) == set(action.schema["enum"]) == set(ACTIONS)
    for name in ACTIONS:
        assert read_request(config, fill(action=name)).action == name


def test_it_can_be_kept_and_shown() -> None:
    for outline in (OUTLINE, Outline(Path("x"), problem="there is no file x")):
        for name, param in make_form(outline).items():
            json.dumps(param.dump(), default=str, allow_nan=False)
            assert param.schema["title"], name
            assert param.description or param.schema["description_md"], name


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("stream", ["ordres", "", None, 1, ["orders"]]),
        ("action", ["drain", None, "AUTO"]),
        ("order", ["random", 1]),
        ("factor", [0, -1, 1.5, "10", 10**9, True]),
        ("rate", [0, -1, "fast", True]),
        ("note", [1, "x" * 501, {}]),
        ("answer_within", ["soon", "2 h", "", 7, "2h\n; drop"]),
        ("recovery", [1, []]),
        ("since", [1, {}]),
    ],
)
def test_nonsense_is_refused_before_a_run_is_made(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ParamValidationError):
            fill(**{field: value})


def test_what_the_schema_lets_through_the_task_refuses(config: Config) -> None:
    for field, value in (
        ("rate", math.nan),
        ("rate", 10**400),
        ("since", "yesterday"),
        ("until", "2026-13-01"),
        ("answer_within", "0s"),
        ("answer_within", "99999999d"),
        ("recovery", "../x"),
        ("note", "\a"),
    ):
        filled = {**fill(), field: value}
        with pytest.raises(UsageError) as caught:
            read_request(config, filled)
        assert caught.value.subject == field


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "action": st.sampled_from(ACTIONS),
        "since": st.none() | st.datetimes(timezones=st.timezones()).map(lambda at: at.isoformat()),
        "order": st.sampled_from(["as configured", "key", "round_robin"]),
        "factor": st.none() | st.integers(1, 100),
        "rate": st.none() | st.floats(min_value=0.001, allow_infinity=False),
        "note": st.none() | st.text(st.characters(categories=["L", "N", "P", "S"]), max_size=500),
        "answer_within": st.none() | st.integers(1, 1000).map("{}m".format),
    },
)


@given(FIELDS)
def test_what_a_person_can_enter_is_a_request(config: Config, values: dict[str, Any]) -> None:
    since = values.get("since")
    if since is not None and not "1000" < since < "9000":
        del values["since"]
    request = read_request(config, fill(**values))
    assert request.factor == values.get("factor")
    assert request.note == (values.get("note") or "").strip()
    assert (request.since is None) == (values.get("since") is None)


def test_without_streams_anything_goes_and_the_problem_is_shown(config: Config) -> None:
    form = make_form(Outline(Path("x"), problem="there is no file x"))
    stream: Param = form["stream"]
    assert "there is no file x" in stream.schema["description_md"]
    assert "enum" not in stream.schema
    assert stream.resolve("orders") == "orders"
    # The first task says what is wrong.
    with pytest.raises(UsageError, match="no such stream"):
        read_request(config, {"stream": make_form(Outline(Path("x")))["stream"].resolve()})
