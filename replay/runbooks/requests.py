"""What was asked for in the form of a recovery."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any

from pydantic.fields import FieldInfo

from backlogctl.clock import parse_duration
from backlogctl.config.base import find_nearest
from backlogctl.errors import Refused, UsageError
from backlogctl.replay.engine.kind import Kind, Registry, Say, Workspace, ignore_progress
from backlogctl.replay.engine.options import read_options
from backlogctl.replay.engine.plan import RunOrigin, list_recoveries_of_run
from backlogctl.values import Recovery, RecoveryState

AUTO, HOLD = "auto", "hold"
BY_STREAM = "as configured"
MAX_TEXT, MAX_LINES = 500, 1000
MAX_WAIT = timedelta(days=365)
# Added by Airflow's OpenLineage provider to the runs that a DAG starts.
_OF_OTHERS = ("openlineage",)
# Control characters but those of several lines, and halves of surrogate pairs.
_UNSPEAKABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_RECOVERY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class RecoveryRequest:
    """The form, checked.

    Attributes:
        said: what it says of the plan, as it was typed; the options of the chosen kind are read
            from it.
        recovery: a plan that exists already, "" to make one.
        answer_within: how long the approval is waited for; None takes the configuration's.
    """

    stream: str
    action: str = AUTO
    said: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    recovery: str = ""
    answer_within: timedelta | None = None


def list_actions(kinds: Registry) -> tuple[str, ...]:
    """What a form can ask for, its default first; where there is one kind, there is no choice."""
    names = kinds.names()
    return names if len(names) == 1 else (AUTO, HOLD, *names)


def list_fields(kinds: Registry) -> Iterator[tuple[tuple[Kind[Any, Any], ...], str, FieldInfo]]:
    """The options that a form has, those with a title; one that several kinds share is once there.

    Yields:
        The kinds that have it, its name, and what the first one's model says of it.
    """
    found: dict[str, list[Kind[Any, Any]]] = {}
    for kind in kinds:
        for name, info in kind.options_model.model_fields.items():
            if info.title:
                found.setdefault(name, []).append(kind)
    for name, owners in found.items():
        yield tuple(owners), name, owners[0].options_model.model_fields[name]


def refuse_unknown(conf: Mapping[str, Any], kinds: Registry) -> None:
    """What a request says that no field of the form is for.

    Raises:
        UsageError: names it, and the nearest field.
    """
    known = {one.name for one in fields(RecoveryRequest)} - {"said"}
    known |= {name for _, name, _ in list_fields(kinds)}
    for name in conf:
        if name not in known and name not in _OF_OTHERS:
            raise UsageError(
                f"the form has no field {str(name)[:MAX_TEXT]!r}",
                subject="conf",
                hint=f"the nearest is `{find_nearest(str(name), known)}`",
            )


def read_request(
    workspace: Workspace, form: Mapping[str, Any], kinds: Registry | None = None
) -> RecoveryRequest:
    """Checks a form: what an API sends may be anything.

    Args:
        kinds: those that the form is for; all where it is None.

    Raises:
        UsageError: names the field; an unknown stream names the nearest.
    """
    config, kinds = workspace.config, kinds or workspace.kinds
    stream = config.stream(_read_text(form, "stream"))
    actions = list_actions(kinds)
    action = _read_text(form, "action") or actions[0]
    if action not in actions:
        known = ", ".join(actions)
        raise UsageError(f"{action!r} is not an action", subject="action", hint=f"one of {known}")
    said = {
        name: value
        for _, name, info in list_fields(kinds)
        if (value := _read_option(form, name, info)) not in (None, "", BY_STREAM)
        and not (value is False and info.annotation is bool)  # a switch that is off
    }
    chosen = [
        kind for kind in kinds if kind.name == action or (action == AUTO and kind.is_suggested)
    ]
    _refuse_strays(kinds, chosen, action, said)
    for kind in chosen:
        read_options(kind.options_model, choose_options(kind, said), config, stream)
    return RecoveryRequest(
        stream=stream.name,
        action=action,
        said=said,
        # It is kept in the plan and shown to whoever looks.
        note=config.mask_secrets(_read_text(form, "note")),
        recovery=_read_recovery(form),
        answer_within=_read_wait(form),
    )


def choose_options(kind: Kind[Any, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a form's fields that are options of the kind."""
    return {name: value for name, value in said.items() if name in kind.options_model.model_fields}


def _refuse_strays(
    kinds: Registry, chosen: Sequence[Kind[Any, Any]], action: str, said: Mapping[str, Any]
) -> None:
    """An option of another action would be left out without a word: a key, and all is put back."""
    known = {name for kind in chosen for name in kind.options_model.model_fields}
    for owners, name, _ in list_fields(kinds):
        if name in said and name not in known:
            others = " or ".join(kind.name for kind in owners)
            raise UsageError(
                f"the action {action} has no such option",
                subject=name,
                hint=f"leave it empty, or take the action {others}",
            )


def _read_option(form: Mapping[str, Any], name: str, info: FieldInfo) -> Any:
    value = form.get(name)
    if isinstance(info.default, tuple):
        return _read_lines(value, name)
    if isinstance(value, str):
        return _read_text(form, name)
    if isinstance(value, list | dict):
        raise UsageError("it must be one value", subject=name)
    return value


def _read_lines(value: Any, name: str) -> list[str] | None:
    """A list of texts, or one text with one a line; empty ones are nobody's choice."""
    if value is None:
        return None
    lines = value.splitlines() if isinstance(value, str) else value
    if not isinstance(lines, list | tuple):
        raise UsageError("it must be a list of texts", subject=name)
    if len(lines) > MAX_LINES:
        raise UsageError(f"it has more than {MAX_LINES} lines", subject=name)
    found = [text for line in lines if (text := _read_text({name: line}, name))]
    for text in found:
        if text.startswith("@"):
            raise UsageError(
                f"{text!r} names a file, which would be read where the task runs",
                subject=name,
                hint="write one a line; the command line takes files",
            )
    return found or None


def _read_text(form: Mapping[str, Any], name: str) -> str:
    value = form.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UsageError("it must be text", subject=name)
    text = value.strip()
    if len(text) > MAX_TEXT:
        raise UsageError(f"it is longer than {MAX_TEXT} characters", subject=name)
    if _UNSPEAKABLE.search(text):
        raise UsageError("it holds characters that are not text", subject=name)
    return text


def _read_recovery(form: Mapping[str, Any]) -> str:
    text = _read_text(form, "recovery")
    if text and not _RECOVERY_ID.fullmatch(text):
        raise UsageError(
            f"{text!r} is not the id of a recovery",
            subject="recovery",
            hint="such as r-20261121-0007; leave it empty to make a plan",
        )
    return text


def _read_wait(form: Mapping[str, Any]) -> timedelta | None:
    text = _read_text(form, "answer_within")
    if not text:
        return None
    try:
        found = parse_duration(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is not a duration", subject="answer_within", hint="such as 30m, 2h or 1d"
        ) from None
    if not timedelta(0) < found <= MAX_WAIT:
        raise UsageError(
            f"it must be longer than zero and at most {MAX_WAIT.days}d", subject="answer_within"
        )
    return found


# An earlier try's plan that nobody will run.
_CLOSED = (RecoveryState.REJECTED, RecoveryState.CANCELLED)


def find_or_plan(
    workspace: Workspace,
    request: RecoveryRequest,
    kind: str,
    origin: RunOrigin,
    say: Say = ignore_progress,
) -> Recovery:
    """The plan of this run: a task that is cleared, or tried again, gets the same one.

    Raises:
        UsageError: the recovery that the form names does not fit.
        Refused: there is nothing to do, a guard says no, or another recovery is in the way.
    """
    if request.recovery:
        return _find_named(workspace, request, kind)
    for recovery in list_recoveries_of_run(workspace.ledger, origin):
        same = (recovery.kind, recovery.stream) == (kind, request.stream)
        if same and recovery.state not in _CLOSED:
            return recovery
    stream, chosen = workspace.config.stream(request.stream), workspace.kinds.get(kind)
    said = choose_options(chosen, request.said)
    if request.action == AUTO:
        said = {**chosen.suggest_options(workspace.ledger, stream), **said}
    options = read_options(chosen.options_model, said, workspace.config, stream)
    return chosen.make_plan(workspace, stream, options, origin=origin, say=say)


def find_named_kind(workspace: Workspace, request: RecoveryRequest, kinds: Registry) -> str:
    """The kind of the recovery that a form names.

    Args:
        kinds: those that the form is for.

    Raises:
        UsageError: it is of another kind.
    """
    recovery = workspace.ledger.recoveries.get(request.recovery)
    name = workspace.kind_of(recovery).name
    if name not in kinds.names():
        raise UsageError(
            f"it is a plan to {name}, and this DAG is for {', '.join(kinds.names())}",
            subject=f"recovery {recovery.id}",
            hint="name it in the DAG for that, or run it by hand",
        )
    return name


def _find_named(workspace: Workspace, request: RecoveryRequest, kind: str) -> Recovery:
    recovery = workspace.ledger.recoveries.get(request.recovery)
    workspace.kind_of(recovery)
    if (recovery.kind, recovery.stream) != (kind, request.stream):
        raise UsageError(
            f"it is a plan to {recovery.kind} {recovery.stream}, not to {kind} {request.stream}",
            subject=f"recovery {recovery.id}",
        )
    if recovery.state in _CLOSED:
        raise Refused(
            f"it was {recovery.state}",
            subject=f"recovery {recovery.id}",
            hint="leave `recovery` empty to make a new plan",
        )
    return recovery
