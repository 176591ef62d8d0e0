"""`backlogctl plan KIND`: what would be done, computed and stored; nothing is changed.

The arguments of each kind are the fields of its options model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from typer.core import TyperGroup

from backlogctl.replay.cli.shared import Session, verb
from backlogctl.replay.engine.options import spell_option

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from backlogctl.replay.engine.kind import Kind
    from backlogctl.replay.engine.plan import Options


# Verbs whose options are a model's fields: said once, and the same in every form.

Call = Callable[[Session, str, dict[str, Any]], None]
"""Takes the session, the stream's name, and what was said by the name of its field."""


@dataclass(frozen=True)
class Verb:
    """`GROUP NAME STREAM --OPTION ...`."""

    name: str
    summary: str
    model: type[Options]
    call: Call


def make_verb_group(summary: str, list_verbs: Callable[[], Iterable[Verb]]) -> typer.Typer:
    """A group of verbs, as `app.add_typer` takes it."""
    app = typer.Typer(help=summary, cls=make_group(summary, list_verbs), no_args_is_help=True)
    app.callback()(_describe(summary))
    return app


def _describe(summary: str) -> Callable[[], None]:
    def describe() -> None:
        pass

    describe.__doc__ = summary
    return describe


def make_group(summary: str, list_verbs: Callable[[], Iterable[Verb]]) -> type[TyperGroup]:
    """Its verbs are made when one is asked for: `--help` of others stays quick."""

    @cache
    def make_verbs() -> Any:
        app = typer.Typer()
        app.callback()(_describe(summary))
        for one in list_verbs():
            app.command(one.name)(verb(_make_command(one)))
        return typer.main.get_command(app)

    class Group(TyperGroup):
        """Of these verbs."""

        def list_commands(self, ctx: Any) -> list[str]:
            """Their names."""
            names: list[str] = make_verbs().list_commands(ctx)
            return names

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            """One of them; None where there is none."""
            return make_verbs().get_command(ctx, cmd_name)

    return Group


def _make_command(made: Verb) -> Callable[..., None]:
    def call(session: Session, /, stream: str, **said: Any) -> None:
        made.call(session, stream, said)

    first = inspect.signature(call).parameters
    parameters = [first["session"].replace(annotation=Session), _make_argument()]
    parameters += [_make_option(*item) for item in made.model.model_fields.items()]
    call.__dict__["__signature__"] = inspect.Signature(parameters)
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    call.__doc__ = made.summary
    return call


def name_options(model: type[Options]) -> Callable[[str], str]:
    """How an error calls a field: `--since`."""
    fields = model.model_fields
    return lambda name: spell_option(name, fields[name]) if name in fields else name


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
        spell_option(name, info), help=info.description, show_default=bool(info.default)
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[typed | None, option],
        default=info.default or None,
    )


def _list_verbs() -> Iterator[Verb]:
    from backlogctl.replay.kinds import KINDS

    for kind in KINDS:
        yield Verb(kind.name, kind.summary, kind.options_model, partial(make_plan, kind))


plan = make_verb_group("Plan a recovery; nothing is changed.", _list_verbs)


def make_plan(kind: Kind[Any, Any], session: Session, stream: str, said: dict[str, Any]) -> None:
    """Plans, and prints the plan."""
    from backlogctl.kafka.clients import reach_cluster
    from backlogctl.replay.engine.next_commands import list_next_commands
    from backlogctl.replay.engine.options import read_options
    from backlogctl.replay.observe.stream import warn_of_brokers
    from backlogctl.replay.present.document import read_plan
    from backlogctl.replay.present.layout import spin
    from backlogctl.replay.present.status import describe_recovery
    from backlogctl.replay.present.terminal import render_next, render_plan_view
    from backlogctl.values import RecoveryState

    config = session.load_config()
    chosen = config.stream(stream)
    options = read_options(
        kind.options_model, said, config, chosen, name_options(kind.options_model)
    )
    workspace = session.open_workspace()
    with spin(session.err) as say:
        away = reach_cluster(workspace.properties(chosen), f"cluster {chosen.cluster}")
        for warning in warn_of_brokers(away):
            say(f"! {warning}")
        waiting = workspace.ledger.recoveries.list(stream, (RecoveryState.PLANNED,))
        recovery = kind.make_plan(workspace, chosen, options, say=say)
    for one in (workspace.ledger.recoveries.get(before.id) for before in waiting):
        if one.detail.get("superseded_by") == recovery.id:
            session.say(f"! {one.kind} {one.id} waited for its approval; this plan took its place")
    session.emit(
        describe_recovery(workspace, recovery),
        render_plan_view(read_plan(workspace, recovery, previews=not session.json)),
        render_next(*list_next_commands(workspace, recovery)),
    )
