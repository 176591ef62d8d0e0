"""`backlogctl waive`: close a gap that nobody needs back."""

from __future__ import annotations

from typing import Annotated

import typer

from replay.cli.shared import Session, verb


@verb
def waive_gap(
    session: Session,
    gap: Annotated[str, typer.Argument(help="The gap's id.")],
    reason: Annotated[str, typer.Option(help="Why it needs no recovery; kept on record.")],
) -> None:
    """Close a gap that needs no recovery, with a reason."""
    from backlog.errors import UsageError
    from backlog.values import GapState
    from replay.recovery.identity import find_identity
    from replay.telling.documents import describe_gap

    if not reason.strip():
        raise UsageError("a reason is needed", subject=f"gap {gap}", hint='--reason "…"')
    ledger = session.open_workspace().ledger
    ledger.gaps.get(gap)
    ledger.gaps.advance([gap], GapState.WAIVED, reason=f"{reason.strip()} ({find_identity()})")
    document = describe_gap(ledger.gaps.get(gap))
    session.emit(document, f"{gap} waived")
