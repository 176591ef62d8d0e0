"""`backlogctl gaps`: the exact ranges that a group will never read."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backlogctl.errors import BacklogError
from backlogctl.replay.cli.plan import Verb, make_verb_group, name_options
from backlogctl.replay.cli.shared import Session, mask_document, read_states, show_error, verb
from backlogctl.replay.cli.status import (
    Bootstrap,
    Cluster,
    Group,
    Topic,
    open_for_looking,
    suggest_adoption,
)

if TYPE_CHECKING:
    from backlogctl.replay.audits.audit import Audit


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
    from backlogctl.errors import BacklogError
    from backlogctl.monitoring.verdict.commands import redrive_offsets
    from backlogctl.monitoring.watch.notes import show_takers
    from backlogctl.replay.engine.next_commands import find_unverified, suggest_plans
    from backlogctl.replay.injection.archived import suggest_redrive
    from backlogctl.replay.injection.unprocessed import find_skipped, is_skipped_in_log
    from backlogctl.replay.kinds.rebuild.losses import explain_unrebuildable
    from backlogctl.replay.observe.stream import choose_streams, sample_streams
    from backlogctl.replay.present.status import describe_gap
    from backlogctl.replay.present.terminal import render_gaps, render_next, render_warnings
    from backlogctl.values import Certainty, GapState

    states = read_states(GapState, state)
    workspace = open_for_looking(session, bootstrap, cluster, group, topic)
    chosen = choose_streams(workspace.config, streams or [])
    warnings: dict[str, None] = {}
    is_whole = True
    if look:
        for stream, seen in sample_streams(workspace, chosen):
            if isinstance(seen, BacklogError):
                if len(chosen) == 1:
                    raise seen
                is_whole = False
                warnings[f"what {stream.name} lost since the last look is unknown: {seen}"] = None
            else:
                warnings.update(dict.fromkeys(seen[1]["warnings"]))
    found = [
        gap
        for stream in chosen
        for gap in workspace.ledger.gaps.list(stream=stream.name, states=states)
    ]
    document: dict[str, Any] = {
        "gaps": [describe_gap(gap) for gap in found],
        "warnings": list(warnings),
    }

    def draw() -> Iterator[Any]:
        yield from (render_gaps(document), *render_warnings(document["warnings"]))
        ledger, adopting = workspace.ledger, suggest_adoption(bootstrap, cluster, group)
        waiting = {gap.id for gap in ledger.gaps.list_waiting()}
        lost = [
            gap for gap in found if gap.count and (gap.state is GapState.OPEN or gap.id in waiting)
        ]
        if lost and adopting is not None:
            yield from render_next(*adopting)
            return
        whose = {stream.name: stream for stream in chosen}
        reasons = {
            gap.id: ""
            if suggest_redrive(ledger, gap) or is_skipped_in_log(ledger, whose[gap.stream], gap)
            else explain_unrebuildable(ledger, gap, whose[gap.stream])
            for gap in lost
        }
        senders: dict[str, str] = {}
        for name in whose:
            senders |= find_unverified(ledger, name)
        for gap in lost:
            stream, is_possible = whose[gap.stream], gap.certainty is Certainty.POSSIBLE
            if sender := senders.get(gap.id):
                yield (
                    f"{gap.id} was put back by {sender}, which ended before all was read back as "
                    f"it should be: `backlogctl show {sender}` has what it found. Where the "
                    f"messages are there, `backlogctl waive {gap.id} --reason ...`"
                )
            elif is_possible and (place := find_skipped(ledger, stream, gap)):
                yield (
                    f"{gap.id} was read, or skipped: the consumers' own log or table tells. Where "
                    f"it was read, `backlogctl waive {gap.id} --reason ...`; else "
                    f"`{redrive_offsets(gap.stream, [place])}`"
                )
            elif reasons[gap.id]:
                yield (
                    f"{gap.id} cannot be put back: {reasons[gap.id]}. Once its messages were sent "
                    "again from where they came, or are given up, "
                    f"`backlogctl waive {gap.id} --reason ...`"
                )
        plans = [
            command
            for stream in chosen
            for command in suggest_plans(
                workspace, stream, [gap for gap in lost if gap.stream == stream.name]
            )
        ]
        yield from render_next(*plans, *show_takers(found))

    session.emit(document, draw())
    if not is_whole:
        raise typer.Exit(1)


@verb
def waive_gap(
    session: Session,
    gap: Annotated[str, typer.Argument(help="The gap's id.")],
    reason: Annotated[str, typer.Option(help="Why it needs no recovery; kept on record.")],
) -> None:
    """Close a gap that needs no recovery, with a reason."""
    from backlogctl.errors import UsageError
    from backlogctl.replay.engine.plan import find_identity
    from backlogctl.replay.present.status import describe_gap
    from backlogctl.values import GapState

    if not reason.strip():
        raise UsageError("a reason is needed", subject=f"gap {gap}", hint='--reason "…"')
    ledger = session.open_workspace().ledger
    ledger.gaps.get(gap)
    ledger.gaps.advance([gap], GapState.WAIVED, reason=f"{reason.strip()} ({find_identity()})")
    document = describe_gap(ledger.gaps.get(gap))
    session.emit(document, f"{gap} waived")


def _list_verbs() -> Iterator[Verb]:
    from backlogctl.replay.audits import AUDITS

    for one in AUDITS:
        yield Verb(one.name, one.summary, one.options_model, partial(examine, one))


audit = make_verb_group("Find losses that offsets do not show; nothing is changed.", _list_verbs)


def examine(audit: Audit, session: Session, stream: str, said: dict[str, Any]) -> None:
    """Audits, and prints what was found; the exit code says whether something is missing."""
    from backlogctl.replay.audits.carrying import run_audit
    from backlogctl.replay.engine.interrupts import Interrupts
    from backlogctl.replay.engine.options import read_options
    from backlogctl.replay.present.layout import spin
    from backlogctl.replay.present.tables import render_audit

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
            found = run_audit(audit, workspace, chosen, options, say)
        except BacklogError as failure:
            # 1 would say that messages are lost.
            raise typer.Exit(max(2, show_error(failure, as_json=session.json))) from None
    document = mask_document(found.to_json())
    session.emit(document, lambda: render_audit(document))
    if found.exit_code:
        raise typer.Exit(found.exit_code)
