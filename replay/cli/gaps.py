"""`backlogctl gaps`: the exact ranges that a group will never read."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from replay.cli.shared import Session, print_text, read_states, verb
from replay.cli.status import Bootstrap, Cluster, Group, Topic, open_for_looking, suggest_adoption


@verb
def list_gaps(
    session: Session,
    streams: Annotated[list[str] | None, typer.Argument(help="All without a name.")] = None,
    state: Annotated[list[str] | None, typer.Option(help="Only in this state.")] = None,
    look: Annotated[bool, typer.Option(help="Look at the topic first.")] = True,
    bootstrap: Bootstrap = None,
    cluster: Cluster = None,
    group: Group = None,
    topic: Topic = None,
) -> None:
    """List the ranges that a group will never read, and why."""
    from rich.console import Console

    from backlog.values import GapState
    from replay.around.observation import choose_streams, look_at_stream
    from replay.injection.archived import suggest_plan, suggest_redrive
    from replay.kinds.rebuild.choosing import say_why_not
    from replay.telling.documents import describe_gap
    from replay.telling.terminal import draw_gaps, draw_warnings, print_next

    states = read_states(GapState, state)
    workspace = open_for_looking(session, bootstrap, cluster, group, topic)
    chosen = choose_streams(workspace.config, streams or [])
    warnings: dict[str, None] = {}
    if look:
        for stream in chosen:
            warnings.update(dict.fromkeys(look_at_stream(workspace, stream)[1]["warnings"]))
    found = [
        gap
        for stream in chosen
        for gap in workspace.ledger.gaps.list(stream=stream.name, states=states)
    ]
    document: dict[str, Any] = {
        "gaps": [describe_gap(gap) for gap in found],
        "warnings": list(warnings),
    }

    def show(console: Console) -> None:
        console.print(draw_gaps(document))
        for line in draw_warnings(list(warnings)):
            console.print(line)
        ledger, adopting = workspace.ledger, suggest_adoption(bootstrap, cluster, group)
        waiting = {gap.id for gap in ledger.gaps.list_waiting()}
        lost = [
            gap for gap in found if gap.count and (gap.state is GapState.OPEN or gap.id in waiting)
        ]
        if lost and adopting is not None:
            print_next(console, *adopting)
            return
        whose = {stream.name: stream for stream in chosen}
        reasons = {
            gap.id: ""
            if suggest_redrive(ledger, gap)
            else say_why_not(ledger, gap, whose[gap.stream])
            for gap in lost
        }
        for gap_id, reason in reasons.items():
            if reason:
                print_text(console, f"{gap_id} cannot be put back: {reason}")
        print_next(
            console, *sorted({suggest_plan(ledger, gap) for gap in lost if not reasons[gap.id]})
        )

    session.emit(document, show)
