"""`backlogctl audit NAME`: losses that offsets do not show; Kafka is only read.

The arguments of each audit are the fields of its options model.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from backlog.errors import BacklogError
from replay.cli.modelled import Verb, make_app, name_options
from replay.cli.shared import Session, mask_document, show_error

if TYPE_CHECKING:
    from replay.audits.audit import Audit


def _list_verbs() -> Iterator[Verb]:
    from replay.audits import AUDITS

    for one in AUDITS:
        yield Verb(one.name, one.summary, one.options_model, partial(examine, one))


audit = make_app("Find losses that offsets do not show; nothing is changed.", _list_verbs)


def examine(audit: Audit, session: Session, stream: str, said: dict[str, Any]) -> None:
    """Audits, and prints what was found; the exit code says whether something is missing."""
    from replay.audits.carrying import carry_out
    from replay.recovery.interrupts import Interrupts
    from replay.recovery.options import read_options
    from replay.telling.audits import draw_audit
    from replay.telling.bars import spin

    config = session.load_config()
    chosen = config.stream(stream)
    options = read_options(
        audit.options_model, said, config, chosen, name_options(audit.options_model)
    )
    workspace = session.open_workspace()
    # SIGTERM too: what was copied of a table is removed.
    interrupts = Interrupts()
    with interrupts.installed(), interrupts.restored(), spin(session.err) as say:
        try:
            found = carry_out(audit, workspace, chosen, options, say)
        except BacklogError as failure:
            # 1 would say that messages are lost.
            raise typer.Exit(max(2, show_error(failure, as_json=session.json))) from None
    document = mask_document(found.to_json())
    session.emit(document, lambda console: console.print(draw_audit(document)))
    if found.exit_code:
        raise typer.Exit(found.exit_code)
