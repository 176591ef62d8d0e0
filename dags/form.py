"""The form of a run that recovers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import Param, get_parsing_context

from backlogctl.config.root import Outline
from backlogctl.replay.engine.kind import Kind, Registry
from backlogctl.replay.kinds import KINDS
from backlogctl.replay.runbooks.requests import AUTO, BY_STREAM, HOLD, list_actions, list_fields

# Fields without a section come first, and are seen at once.
_RECORD = "Approval and record"
# What of an option's schema the form checks before a run is made.
_BOUNDS = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("minLength", "maxLength", "pattern", "format", "items"),
)
_WORDS = {
    AUTO: "auto: what the verdict suggests; offload first, then put back",
    HOLD: "hold: raise the topic's retention for a time, before anything else is planned",
}


def make_fields(outline: Outline, kinds: Registry = KINDS) -> dict[str, Param]:
    """The form for people; for a task that runs, fields that take anything.

    Airflow checks them before each task, also those that approve, restore and report. The file may
    have changed since the run began; what it asks for is checked once, by its first task.
    """
    form = make_form(outline, kinds)
    if get_parsing_context().task_id is None:
        return form
    return {name: Param(None if name == "stream" else form[name].value) for name in form}


def make_form(outline: Outline, kinds: Registry = KINDS) -> dict[str, Param]:
    """The fields, from the streams of the configuration and the options of the kinds."""
    names = [stream.name for stream in outline.streams]
    # Without names anything goes, and the first task says what is wrong with the file.
    choice: dict[str, Any] = {"enum": names} if names else {}
    problem = f" **{outline.problem}**" if outline.problem else ""
    actions = list_actions(kinds)
    return {
        # Without a default: what a form or a request leaves out is nobody's choice.
        "stream": Param(
            type="string",
            **choice,
            title="Stream",
            description_md=f"What is behind, or has lost messages.{problem}",
        ),
        "action": Param(
            actions[0],
            type="string",
            enum=list(actions),
            values_display={
                name: _WORDS.get(name) or _say_action(kinds.get(name)) for name in actions
            },
            title="Action",
            description_md="Every plan is shown before anything is changed.",
        ),
        **{name: _make_field(owners, name) for owners, name, _ in list_fields(kinds)},
        "note": Param(
            "",
            type=["null", "string"],
            maxLength=500,
            title="Incident note",
            description_md="For the approval and the report, such as `INC-4711`.",
            section=_RECORD,
        ),
        "answer_within": Param(
            None,
            type=["null", "string"],
            pattern=r"^([0-9]+(ms|[smhd]))+$",
            title="Answer within",
            description_md="No answer in this time means no, such as `2h`. Empty: "
            "`guards.approval_expires`.",
            section=_RECORD,
        ),
        "recovery": Param(
            None,
            type=["null", "string"],
            title="Existing plan",
            description_md="A plan that was made already, such as `r-20261121-0007-k7qm2p`. Empty: "
            "make one.",
            section=_RECORD,
        ),
    }


def _make_field(owners: Sequence[Kind[Any, Any]], name: str) -> Param:
    """An option of a plan as a field; empty takes what is configured, or measured."""
    schema = _read_schema(owners[0], name)
    words = schema.get("words")
    shared = {
        "title": schema["title"],
        "description_md": _describe(owners, name),
        "section": ", ".join(kind.name for kind in owners).capitalize(),
    }
    if words:
        return Param(BY_STREAM, type="string", enum=[BY_STREAM, *words], **shared)
    # Of `X or nothing`, X.
    typed = next(part for part in schema.get("anyOf", [schema]) if part["type"] != "null")
    if typed["type"] == "boolean":
        return Param(schema["default"], type="boolean", **shared)  # a switch has no third state
    bounds = {key: value for key, value in typed.items() if key in _BOUNDS}
    return Param(None, type=["null", typed["type"]], **bounds, **shared)


def _read_schema(kind: Kind[Any, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = kind.options_model.model_json_schema()["properties"][name]
    return found


def _describe(owners: Sequence[Kind[Any, Any]], name: str) -> str:
    """What it means; for each kind where it means something else."""
    told = {kind.name: _describe_one(_read_schema(kind, name)) for kind in owners}
    if len(set(told.values())) == 1:
        return told[owners[0].name]
    return " ".join(f"**{kind.capitalize()}**: {text}" for kind, text in told.items())


def _describe_one(schema: Mapping[str, Any]) -> str:
    text: str = schema.get("in_form", schema.get("description", ""))
    otherwise = BY_STREAM.capitalize() if schema.get("words") else "Empty"
    text = text.replace("Else ", f"{otherwise}: ")
    if schema.get("type") != "array":
        return text
    # In the shell it is said again; here it is a field of several lines.
    for again in (" May be said again.", "; may be said again"):
        text = text.replace(again, "")
    return f"{text} One a line."


def _say_action(kind: Kind[Any, Any]) -> str:
    """`expand: drain a backlog through a temporary topic`."""
    return f"{kind.name}: {kind.summary[:1].lower()}{kind.summary[1:].rstrip('.')}"
