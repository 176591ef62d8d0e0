"""The form of `recover_backlog`: what it takes is what the tasks take."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Param
from airflow.sdk.exceptions import ParamValidationError
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from backlogctl.config.root import Outline, StreamOutline
from backlogctl.dags.form import make_fields, make_form
from backlogctl.errors import UsageError
from backlogctl.fanout.layout import MAX_FACTOR
from backlogctl.replay import kinds as registered
from backlogctl.replay.cli.plan import make_group
from backlogctl.replay.engine.kind import Registry, Workspace
from backlogctl.replay.engine.options import read_options
from backlogctl.replay.kinds import EXPAND, KINDS, REBUILD
from backlogctl.replay.kinds.expand.kind import ExpandKind
from backlogctl.replay.kinds.expand.plan import ExpandOptions
from backlogctl.replay.runbooks.requests import (
    AUTO,
    HOLD,
    RecoveryRequest,
    choose_options,
    read_request,
    refuse_unknown,
)
from tests.replay.runbooks.desks import open_shop

OUTLINE = Outline(
    Path("backlog.yaml"), tuple(StreamOutline(n, True, None) for n in ("orders", "mails"))
)


ACTIONS = (AUTO, HOLD, *KINDS.names())
_REDRIVES = {"source", "offsets", "key", "where", "to", "everything"}
_OTHERS = {"order", "factor", "rate", "try_one", "gaps", "discard", "allow"}
OPTIONS = {"since", "until", *_OTHERS, *_REDRIVES}
_SHARED = "Rebuild, redrive"
OWN = {"stream", "action", "note", "answer_within", "recovery"}
EMPTY_OR = {
    "number": ["null", "number"],
    "integer": ["null", "integer"],
    "text": ["null", "string"],
}


class SiphonOptions(ExpandOptions):
    """Two more than an expansion has; the form shows one of them."""

    batch: int | None = Field(
        default=None, ge=1, le=50, title="Batch", description="Messages at once. Else `batch`."
    )
    quiet: str | None = Field(default=None, description="Only on the command line.")


class Siphon(ExpandKind):
    """A kind that nobody knows yet."""

    name = "siphon"
    summary = "Take out what nobody reads."
    options_model = SiphonOptions


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return open_shop(tmp_path_factory.mktemp("form"))


def fill(**values: Any) -> dict[str, Any]:
    """The form as a run gets it: its schema is checked, defaults are filled in."""
    form = make_form(OUTLINE)
    given = {"stream": "orders", **values}
    return {
        name: param.resolve(given[name]) if name in given else param.resolve()
        for name, param in form.items()
    }


def test_it_has_every_field_of_a_request_and_no_other() -> None:
    own = {name for name in RecoveryRequest.__dataclass_fields__ if name != "said"}
    assert own == OWN
    assert set(make_form(OUTLINE)) == OWN | OPTIONS


@pytest.mark.parametrize(
    ("name", "default", "schema"),
    [
        ("stream", None, {"type": "string", "enum": ["orders", "mails"]}),
        ("action", AUTO, {"type": "string", "enum": list(ACTIONS)}),
        ("since", None, {"type": EMPTY_OR["text"], "format": "date-time", "section": _SHARED}),
        ("until", None, {"type": EMPTY_OR["text"], "format": "date-time", "section": _SHARED}),
        ("key", None, {
            "type": ["null", "array"], "items": {"type": "string"}, "section": "Redrive",
        }),
        ("allow", None, {
            "type": ["null", "array"], "items": {"type": "string"},
            "section": "Expand, rebuild, offload, redrive",
        }),
        ("order", "as configured", {
            "type": "string", "enum": ["as configured", "key", "round_robin"], "section": "Expand",
        }),
        ("factor", None, {
            "type": EMPTY_OR["integer"], "minimum": 1, "maximum": MAX_FACTOR, "section": "Expand",
        }),
        ("rate", None, {
            "type": EMPTY_OR["number"], "exclusiveMinimum": 0, "section": "Expand",
        }),
        ("try_one", False, {"type": "boolean", "section": "Expand"}),
        ("note", "", {"type": EMPTY_OR["text"], "maxLength": 500}),
        ("answer_within", None, {
            "type": EMPTY_OR["text"], "pattern": r"^([0-9]+(ms|[smhd]))+$",
        }),
        ("recovery", None, {"type": EMPTY_OR["text"]}),
    ],
)  # fmt: skip
def test_a_field_has_its_default_and_its_bounds(
    name: str, default: str | None, schema: dict[str, Any]
) -> None:
    field = make_form(OUTLINE)[name]
    told = {"title", "description_md", "values_display"}
    if "section" not in schema:
        told |= {"section"}
    assert (field.value if field.has_value else None) == default
    assert {key: value for key, value in field.schema.items() if key not in told} == schema


def test_what_an_empty_field_means_is_said() -> None:
    form = make_form(OUTLINE)
    for name, told in (
        ("order", "As configured: `expand.order`."),
        ("factor", "Empty: `expand.factor`."),
        ("rate", "Empty: as measured from samples."),
    ):
        assert form[name].schema["description_md"].endswith(told), name


def test_what_a_shared_field_means_for_each_kind_is_said() -> None:
    form = make_form(OUTLINE)
    for name in ("since", "until"):
        told = form[name].schema["description_md"]
        assert "Empty: as the samples say. **Redrive**: Messages" in told, name
        assert told.startswith("**Rebuild**: Read source rows")
    allowed = form["allow"].schema["description_md"]
    for kind, word in (("Expand", "disk"), ("Rebuild", "surplus"), ("Redrive", "replays")):
        assert f"**{kind}**: `{word}`" in allowed


def test_what_is_said_again_in_the_shell_is_one_a_line_here() -> None:
    form = make_form(OUTLINE)
    assert form["key"].schema["description_md"] == "Only messages of these keys. One a line."
    for name in ("offsets", "gaps", "allow"):
        told = form[name].schema["description_md"]
        assert told.endswith("One a line."), name
        assert "said again" not in told


def test_form_request_and_command_line_have_the_options_of_a_kinds_model(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option is said once, in the model; a kind's own reaches that kind only."""
    siphon = Siphon()
    kinds = Registry([*KINDS, siphon])
    workspace = replace(desk, kinds=kinds)
    form = make_form(OUTLINE, kinds)
    assert set(form) == OWN | OPTIONS | {"batch"}
    assert form["batch"].schema == {
        "type": ["null", "integer"],
        "minimum": 1,
        "maximum": 50,
        "title": "Batch",
        "description_md": "Messages at once. Empty: `batch`.",
        "section": "Siphon",
    }
    assert form["rate"].schema["section"] == "Expand, siphon", "a shared one is once there"
    assert form["action"].schema["enum"] == [*ACTIONS, "siphon"]
    words = form["action"].schema["values_display"]
    assert words["siphon"] == "siphon: take out what nobody reads"

    filled = {name: param.resolve() for name, param in form.items() if name != "stream"}
    filled["stream"] = "orders"
    request = read_request(workspace, {**filled, "action": "siphon", "batch": 7, "rate": 2})
    asked = read_options(
        SiphonOptions,
        choose_options(siphon, request.said),
        desk.config,
        desk.config.stream("orders"),
    )
    assert asked == SiphonOptions(batch=7, rate=2.0)
    assert choose_options(EXPAND, request.said) == {"rate": 2}
    assert choose_options(REBUILD, request.said) == {}
    with pytest.raises(UsageError) as caught:
        read_request(workspace, {**filled, "batch": 51})
    assert caught.value.subject == "batch"
    assert read_request(desk, {**filled, "batch": 51}).said == {}, "no kind has it"

    monkeypatch.setattr(registered, "KINDS", kinds)
    # The package has the command of that name.
    listed = import_module("backlogctl.replay.cli.plan")._list_verbs
    group: Any = make_group("Plan a recovery.", listed)()
    assert group.list_commands(None) == list(kinds.names())
    for kind in kinds:
        command = group.get_command(None, kind.name)
        options = {option.name for option in command.params if option.name != "stream"}
        assert options >= set(kind.options_model.model_fields), kind.name


def test_untouched_it_is_a_request(desk: Workspace) -> None:
    assert read_request(desk, fill()) == RecoveryRequest("orders")


def test_every_action_has_words(desk: Workspace) -> None:
    action = make_form(OUTLINE)["action"]
    assert set(action.schema["values_display"]) == set(action.schema["enum"]) == set(ACTIONS)
    for name in ACTIONS:
        assert read_request(desk, fill(action=name)).action == name


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
        ("action", ["siphon", None, "AUTO"]),
        ("order", ["random", 1]),
        ("factor", [0, -1, 1.5, "10", 10**9, True]),
        ("rate", [0, -1, "fast", True]),
        ("note", [1, "x" * 501, {}]),
        ("answer_within", ["soon", "2 h", "", 7, "2h\n; drop"]),
        ("recovery", [1, []]),
        ("since", [1, {}]),
        ("key", ["k1", [1], {}, 1]),
    ],
)
def test_nonsense_is_refused_before_a_run_is_made(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ParamValidationError):
            fill(**{field: value})


def test_what_the_schema_lets_through_the_task_refuses(desk: Workspace) -> None:
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
            read_request(desk, filled)
        assert caught.value.subject == field


# Before, some were off by seconds, which RFC 3339 and the form's picker cannot say.
_ZONES_IN_MINUTES = datetime(1973, 1, 1)  # noqa: DTZ001 - hypothesis adds the zone
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "action": st.sampled_from(ACTIONS),
        "since": st.none()
        | st.datetimes(_ZONES_IN_MINUTES, timezones=st.timezones()).map(datetime.isoformat),
        "order": st.sampled_from(["as configured", "key", "round_robin"]),
        "factor": st.none() | st.integers(1, 100),
        "rate": st.none() | st.floats(min_value=0.001, allow_infinity=False),
        "note": st.none() | st.text(st.characters(categories=["L", "N", "P", "S"]), max_size=500),
        "answer_within": st.none() | st.integers(1, 1000).map("{}m".format),
    },
)


@given(FIELDS)
def test_what_a_person_can_enter_is_a_request(desk: Workspace, values: dict[str, Any]) -> None:
    since, action = values.get("since"), values.get("action", AUTO)
    if since is not None and not "1000" < since < "9000":
        del values["since"]
    # Those of another action are refused.
    owners = {"since": {AUTO, "rebuild", "redrive"}}
    for name in ("since", "order", "factor", "rate"):
        if action not in owners.get(name, {AUTO, "expand"}):
            values.pop(name, None)
    request = read_request(desk, fill(**values))
    said = request.said
    assert {name: said.get(name) for name in ("factor", "rate")} == {
        name: values.get(name) for name in ("factor", "rate")
    }
    assert request.note == (values.get("note") or "").strip()
    assert ("since" in said) == (values.get("since") is not None)
    assert ("order" in said) == (values.get("order") in ("key", "round_robin"))


def test_without_streams_anything_goes_and_the_problem_is_shown(desk: Workspace) -> None:
    form = make_form(Outline(Path("x"), problem="there is no file x"))
    stream: Param = form["stream"]
    assert "there is no file x" in stream.schema["description_md"]
    assert "enum" not in stream.schema
    assert stream.resolve("orders") == "orders"
    # The first task says what is wrong.
    with pytest.raises(UsageError, match="no such stream"):
        read_request(desk, {"stream": stream.resolve("ordres")})


def test_a_stream_is_chosen_by_nobody_but_who_asks() -> None:
    for outline in (OUTLINE, Outline(Path("x"))):
        with pytest.raises(ParamValidationError, match="No value"):
            make_form(outline)["stream"].resolve()


def test_what_the_form_has_no_field_for_is_refused() -> None:
    """A misspelt option would else be silently left out."""
    with pytest.raises(UsageError, match="no field 'strem'") as caught:
        refuse_unknown({"stream": "orders", "strem": "mails"}, KINDS)
    assert "`stream`" in caught.value.hint
    refuse_unknown({**fill(), "openlineage": {"parentRunId": "x"}}, KINDS)


def test_a_task_that_runs_takes_what_its_run_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream may be gone from the file by then; Airflow would refuse the task its start."""
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_TASK_ID", "expand.restore_layout")
    fields = make_fields(Outline(Path("x"), (StreamOutline("mails", True, None),)))
    assert set(fields) == OWN | OPTIONS
    assert fields["stream"].resolve("orders") == "orders"
    assert fields["rate"].resolve("fast") == "fast"
    assert fields["action"].resolve() == AUTO
    monkeypatch.delenv("_AIRFLOW_PARSING_CONTEXT_TASK_ID")
    with pytest.raises(ParamValidationError):
        make_fields(OUTLINE)["stream"].resolve("gone")
