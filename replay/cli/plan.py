"""`backlogctl plan KIND`: what would be done, computed and stored; nothing is changed.

The arguments of each kind are the fields of its options model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from typer.core import TyperGroup

from replay.cli.shared import Session, verb

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from replay.recovery.kind import Kind


class _Kinds(TyperGroup):
    """A command for each kind, made when one is asked for: `--help` of other verbs is quick."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The kinds' names."""
        names: list[str] = _make_commands().list_commands(ctx)
        return names

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a kind; None where there is none."""
        return _make_commands().get_command(ctx, cmd_name)


plan = typer.Typer(help="Plan a recovery; nothing is changed.", cls=_Kinds, no_args_is_help=True)


@plan.callback()
def _plan() -> None:
    """Plan a recovery; nothing is changed."""


@cache
def _make_commands() -> Any:
    from replay.kinds import KINDS

    app = typer.Typer()
    app.callback()(_plan)
    for kind in KINDS:
        app.command(kind.name)(verb(_make_command(kind)))
    return typer.main.get_command(app)


def make_plan(session: Session, kind: Kind[Any, Any], stream: str, said: dict[str, Any]) -> None:
    """Plans, and prints the plan."""
    from rich.console import Console

    from replay.recovery.options import read_options
    from replay.telling.bars import spin
    from replay.telling.documents import describe_recovery, list_next_commands, tell_plan
    from replay.telling.plans import draw_plan
    from replay.telling.terminal import print_next

    config = session.load_config()
    chosen = config.stream(stream)
    options = read_options(kind.options_model, said, config, chosen, _name_option(kind))
    workspace = session.open_workspace()
    with spin(session.err) as say:
        recovery = kind.make_plan(workspace, chosen, options, say=say)
    document = describe_recovery(workspace, recovery)

    def show(console: Console) -> None:
        console.print(draw_plan(recovery, tell_plan(workspace, recovery)))
        print_next(console, *list_next_commands(workspace, recovery))

    session.emit(document, show)


def _make_command(kind: Kind[Any, Any]) -> Callable[..., None]:
    def call(session: Session, /, stream: str, **said: Any) -> None:
        make_plan(session, kind, stream, said)

    first = inspect.signature(call).parameters
    parameters = [first["session"].replace(annotation=Session), _make_argument()]
    parameters += [_make_option(*item) for item in kind.options_model.model_fields.items()]
    call.__dict__["__signature__"] = inspect.Signature(parameters)
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    call.__doc__ = kind.summary
    return call


def _make_argument() -> inspect.Parameter:
    return inspect.Parameter(
        "stream",
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        annotation=Annotated[str, typer.Argument(help="The stream.")],
    )


def _make_option(name: str, info: FieldInfo) -> inspect.Parameter:
    """As typed on the command line: text, a number, or a list of words."""
    types = {
        part for part in (info.annotation, *get_args(info.annotation)) if part in (bool, int, float)
    }
    typed: Any = types.pop() if types else str
    if isinstance(info.default, tuple):
        typed = list[str]
    option = typer.Option(
        _spell(name, info), help=info.description, show_default=bool(info.default)
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[typed | None, option],
        default=info.default or None,
    )


def _spell(name: str, info: FieldInfo) -> str:
    extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    return f"--{extra.get('option', name)}".replace("_", "-")


def _name_option(kind: Kind[Any, Any]) -> Any:
    fields = kind.options_model.model_fields
    return lambda name: _spell(name, fields[name]) if name in fields else name
