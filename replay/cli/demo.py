"""`backlogctl demo`: the main job, told as a story with real parts."""

from __future__ import annotations

import typer

from replay.cli.shared import Session, verb


@verb
def run_demo(session: Session) -> None:
    """Lose 1,000 of 10,000 orders for real, and put exactly those back (about a minute)."""
    from replay.demo.story import tell_story

    audit = tell_story(session.err if session.json else session.out)
    if session.json:
        session.write_document(audit.to_json())
    if not audit.passed:
        raise typer.Exit(1)
