"""`backlogctl plan KIND`: what would be done, computed and stored; nothing is changed.

The arguments of each kind are the fields of its options model.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from replay.cli.modelled import Verb, make_app, name_options
from replay.cli.shared import Session

if TYPE_CHECKING:
    from replay.recovery.kind import Kind


def _list_verbs() -> Iterator[Verb]:
    from replay.kinds import KINDS

    for kind in KINDS:
        yield Verb(kind.name, kind.summary, kind.options_model, partial(make_plan, kind))


plan = make_app("Plan a recovery; nothing is changed.", _list_verbs)


def make_plan(kind: Kind[Any, Any], session: Session, stream: str, said: dict[str, Any]) -> None:
    """Plans, and prints the plan."""
    from rich.console import Console

    from replay.recovery.options import read_options
    from replay.telling.bars import spin
    from replay.telling.documents import describe_recovery, list_next_commands, preview_plan
    from replay.telling.plans import draw_plan
    from replay.telling.terminal import print_next

    config = session.load_config()
    chosen = config.stream(stream)
    options = read_options(
        kind.options_model, said, config, chosen, name_options(kind.options_model)
    )
    workspace = session.open_workspace()
    with spin(session.err) as say:
        recovery = kind.make_plan(workspace, chosen, options, say=say)
    document = describe_recovery(workspace, recovery)

    def show(console: Console) -> None:
        console.print(draw_plan(recovery, preview_plan(workspace, recovery)))
        print_next(console, *list_next_commands(workspace, recovery))

    session.emit(document, show)
