"""`backlogctl recoveries`: every piece of work on record."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backlogctl.replay.cli.shared import Session, read_states, verb, write_all

if TYPE_CHECKING:
    from rich.console import RenderableType

    from backlogctl.replay.engine.kind import Workspace
    from backlogctl.values import Recovery


@verb
def list_recoveries(
    session: Session,
    stream: Annotated[str | None, typer.Option(help="Only this stream's.")] = None,
    state: Annotated[list[str] | None, typer.Option(help="Only in this state.")] = None,
) -> None:
    """List recoveries, newest first."""
    from backlogctl.replay.present.status import describe_recovery
    from backlogctl.replay.present.terminal import render_recoveries
    from backlogctl.values import RecoveryState

    states = read_states(RecoveryState, state)
    workspace = session.open_workspace()
    if stream is not None:
        workspace.config.stream(stream)
    found = workspace.ledger.recoveries.list(stream=stream, states=states)
    newest = sorted(found, key=lambda recovery: recovery.created_at, reverse=True)
    document = {"recoveries": [describe_recovery(workspace, recovery) for recovery in newest]}
    session.emit(document, lambda: render_recoveries(document))


@verb
def approve_recovery(
    session: Session,
    recovery: Annotated[str, typer.Argument(help="The recovery's id.")],
    by: Annotated[str, typer.Option(help="Your name; your account is recorded beside it.")],
) -> None:
    """Approve a plan as it is stored; the approval expires."""

    from backlogctl.errors import UsageError
    from backlogctl.formats import format_duration
    from backlogctl.replay.engine.approval import approve_plan, describe_expiry
    from backlogctl.replay.engine.next_commands import list_next_commands
    from backlogctl.replay.present.status import describe_recovery
    from backlogctl.replay.present.terminal import render_done, render_next

    if not by.strip():
        raise UsageError("a name is needed", subject="--by")
    workspace = session.open_workspace()
    planned = workspace.ledger.recoveries.get(recovery)
    found = approve_plan(workspace, planned, by=by.strip())
    left = describe_expiry(found)
    session.emit(
        describe_recovery(workspace, found),
        render_done(
            found.id,
            "approved",
            f" by {by.strip()} ({found.approved_identity}), for plan {found.plan_hash[:12]}, "
            f"to be started within {format_duration(left.total_seconds() if left else None)}",
        ),
        render_next(*list_next_commands(workspace, found)),
    )


@verb
def reject_recovery(
    session: Session,
    recovery: Annotated[str, typer.Argument(help="The recovery's id.")],
    reason: Annotated[str, typer.Option(help="Why; kept on record.")] = "",
    by: Annotated[str, typer.Option(help="Your name; your account is recorded beside it.")] = "",
) -> None:
    """Reject a plan; its gaps are open again."""
    from backlogctl.replay.engine.approval import reject_plan
    from backlogctl.replay.present.status import describe_recovery

    workspace = session.open_workspace()
    planned = workspace.ledger.recoveries.get(recovery)
    found = reject_plan(workspace, planned, by=by, reason=reason)
    message = f"{recovery} rejected; {workspace.kind_of(found).say_cancelled(found)}"
    session.emit(describe_recovery(workspace, found), message)


@verb
def run_recovery(
    session: Session, recovery: Annotated[str, typer.Argument(help="The recovery's id.")]
) -> None:
    """Carry out an approved plan, canary first, then verify. Safe to run again."""
    run_and_print(session, session.open_workspace(), recovery)


def _look_ahead(workspace: Workspace, recovery: Recovery) -> list[str]:
    """What comes next; where that may be a plan, by a look at the topic: what it has decides. By
    what is on record where the cluster does not answer, or a look cannot be kept."""
    from backlogctl.errors import LedgerError
    from backlogctl.kafka.errors import TopicMissing
    from backlogctl.monitoring.verdict.commands import is_plan, look_at_stream
    from backlogctl.replay.engine.next_commands import list_next_commands
    from backlogctl.replay.observe.stream import sample_streams

    commands = list_next_commands(workspace, recovery)
    look = look_at_stream(recovery.stream)
    if not any(is_plan(command) or command == look for command in commands):
        return commands
    try:
        found = list(sample_streams(workspace, [workspace.config.stream(recovery.stream)]))
    except LedgerError:
        return commands
    if any(isinstance(seen, TopicMissing) for _, seen in found):
        return [look]
    return list_next_commands(workspace, recovery)


def run_and_print(
    session: Session, workspace: Workspace, recovery_id: str, *, resumed: bool = False
) -> None:
    """Runs a recovery and prints what came of it."""
    from backlogctl.formats import format_duration
    from backlogctl.replay.engine.runner import Run
    from backlogctl.replay.observe.retention import release_due, say_held
    from backlogctl.replay.present.status import describe_run
    from backlogctl.replay.present.terminal import render_done, render_next

    run = Run(workspace, recovery_id, session.err, resumed=resumed)
    found = run.carry_out()
    for sentence in release_due(workspace):
        session.say(sentence, "yellow")
    document = describe_run(workspace, found, run.describe())
    kind = workspace.kind_of(found)
    told = f": {kind.say_run(kind.read_plan(found), document['counts'])}"
    told += say_held(workspace, found)
    if run.was_done:
        told += " (it was verified before; nothing was done now)"
    else:
        told += f"; this run took {format_duration(run.seconds)}"
    session.emit(
        {**document, "next_commands": (commands := _look_ahead(workspace, found))},
        render_done(found.id, str(found.state), told),
        render_next(*commands),
    )


@verb
def pause_recovery(
    session: Session, recovery: Annotated[str, typer.Argument(help="The recovery's id.")]
) -> None:
    """Stop a recovery where nothing is half done; it waits for `resume`."""
    from backlogctl.replay.engine.cancelling import request_pause
    from backlogctl.replay.present.status import describe_recovery

    workspace = session.open_workspace()
    found, message = request_pause(workspace, recovery)
    document = {**describe_recovery(workspace, found), "message": message}
    session.emit(document, message)


@verb
def resume_recovery(
    session: Session, recovery: Annotated[str, typer.Argument(help="The recovery's id.")]
) -> None:
    """Take a pause back, and go on with the recovery."""
    from backlogctl.replay.engine.cancelling import withdraw_pause
    from backlogctl.replay.present.status import describe_recovery

    workspace = session.open_workspace()
    found, holder = withdraw_pause(workspace, recovery)
    if holder is None:
        run_and_print(session, workspace, recovery, resumed=True)
        return
    message = f"the pause of {recovery} is taken back; runner {holder} goes on"
    document = {**describe_recovery(workspace, found), "message": message}
    session.emit(document, message)


@verb
def cancel_recovery(
    session: Session,
    recovery: Annotated[str, typer.Argument(help="The recovery's id.")],
    wait: Annotated[float, typer.Option(help="Seconds to wait for a live runner.")] = 120.0,
    rewind: Annotated[
        bool,
        typer.Option(
            "--rewind",
            help="Of an expansion: the group reads again what was relayed; needs no consumer that "
            "works. What was handled of it is handled once more.",
        ),
    ] = False,
    leave_consumers: Annotated[
        bool,
        typer.Option(
            "--leave-consumers",
            help="Of an expansion or an offload: consumers are neither started nor stopped; you do "
            "that by hand.",
        ),
    ] = False,
) -> None:
    """Cancel a recovery: a rebuild keeps what it has put back, an expansion is cut over now.

    Nothing is lost: messages in a temporary topic are read to their end before the layout is
    restored and the topic deleted. An offload goes back where its group was not moved yet, and is
    ended forward where it was: its archive is put back later.
    """
    from backlogctl.replay.engine.cancelling import cancel_work, find_ways
    from backlogctl.replay.observe.retention import say_held
    from backlogctl.replay.present.layout import Text
    from backlogctl.replay.present.status import describe_recovery
    from backlogctl.replay.present.terminal import render_next

    workspace = session.open_workspace()
    chosen = {"rewind": rewind, "leave-consumers": leave_consumers}
    ways = [way for way, wanted in chosen.items() if wanted]
    found = cancel_work(
        workspace, recovery, wait=wait, ways=ways, say=session.say, console=session.err
    )
    asked = find_ways(workspace, recovery)  # it may have been cancelled before, in another way
    message = f"{recovery} is {found.state}; {workspace.kind_of(found).say_cancelled(found, asked)}"
    message += say_held(workspace, found)
    commands = _look_ahead(workspace, found)
    document = {**describe_recovery(workspace, found), "message": message}
    session.emit({**document, "next_commands": commands}, Text(message), render_next(*commands))


@verb
def pass_message(
    session: Session,
    recovery: Annotated[str, typer.Argument(help="The expansion's id.")],
    partition: Annotated[int, typer.Option(help="Of its temporary topic.")],
    offset: Annotated[int, typer.Option(help="Of the message: the next unread one.")],
) -> None:
    """Go past a message that an expansion's consumers cannot handle; it is kept.

    The recovery must be paused, or have no runner. The message is kept byte for byte in its
    staging, and the offset of its group moves by one; `plan redrive STREAM --from passed:RECOVERY`
    puts it back later.
    """
    from backlogctl.errors import LeaseHeld, UsageError
    from backlogctl.replay.engine.next_commands import list_next_commands
    from backlogctl.replay.kinds.expand.kind import ExpandKind
    from backlogctl.replay.present.status import describe_recovery
    from backlogctl.replay.present.terminal import render_done, render_next

    workspace = session.open_workspace()
    found = workspace.ledger.recoveries.get(recovery)
    kind = workspace.kind_of(found)
    if not isinstance(kind, ExpandKind):
        raise UsageError(
            "only an expansion has a temporary topic", subject=f"{found.kind} {recovery}"
        )
    try:
        is_new = kind.pass_message(workspace, found, partition, offset, session.err)
    except LeaseHeld as held:
        raise LeaseHeld(
            held.message,
            subject=held.subject,
            hint=f"`backlogctl pause {recovery}` first, and `backlogctl resume {recovery}` after",
        ) from held
    found = workspace.ledger.recoveries.get(recovery)
    told = " is passed, and kept" if is_new else " was passed before; nothing was changed"
    message = f"offset {offset} of partition {partition}{told}"
    session.emit(
        {**describe_recovery(workspace, found), "message": message},
        render_done(recovery, "passed", f": {message}"),
        render_next(*list_next_commands(workspace, found)),
    )


_LOOK_SECONDS = 1.0


@verb
def show_recovery(
    session: Session,
    recovery: Annotated[str, typer.Argument(help="The recovery's id.")],
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again each second, until it is at an end.")
    ] = False,
) -> None:
    """Show a recovery: its plan, its state and its record; while it runs, how far it is."""

    from dataclasses import replace

    from backlogctl.errors import UsageError
    from backlogctl.replay.present.document import read_document
    from backlogctl.replay.present.layout import Text
    from backlogctl.replay.present.terminal import (
        render_events,
        render_next,
        render_plan_view,
        render_progress,
        render_recovery_status,
    )
    from backlogctl.values import FINAL

    if watch and session.json:
        raise UsageError("--watch draws, and --json prints one document", subject="--watch")
    workspace = session.open_workspace()
    current = workspace.ledger.recoveries.get(recovery)
    workspace.kind_of(current)
    if watch:
        current = _watch(session, workspace, current)
    document = read_document(workspace, current, previews=not (watch or session.json))
    if current.state in FINAL:
        document = replace(document, next_commands=tuple(_look_ahead(workspace, current)))

    def draw() -> Iterator[RenderableType]:
        if not watch:
            yield render_plan_view(document.planned)
            if document.progress["steps"]:
                yield render_progress(document.progress, state=document.recovery.state)
        yield render_events(document.events)
        if document.record.problem:
            yield Text("the record was changed after it was written", "bold red")
        if document.standing:
            yield render_recovery_status(document.standing)
        yield from render_next(*document.next_commands)

    session.emit(document.to_json(), draw())


def _watch(session: Session, workspace: Workspace, recovery: Recovery) -> Recovery:
    """Draws until it is at an end, or failed, or Ctrl-C."""
    from rich.live import Live

    from backlogctl.replay.present.layout import Folded
    from backlogctl.values import FINAL, RecoveryState

    with Live(console=session.out, auto_refresh=False) as live:
        try:
            while True:
                live.update(Folded(_draw(workspace, recovery)), refresh=True)
                if recovery.state in (*FINAL, RecoveryState.FAILED):
                    break
                time.sleep(_LOOK_SECONDS)
                recovery = workspace.ledger.recoveries.get(recovery.id)
        except KeyboardInterrupt:
            pass
    return recovery


def _draw(workspace: Workspace, recovery: Recovery) -> RenderableType:
    """What moves: the plan only as long as nothing does."""
    from rich.console import Group

    from backlogctl.replay.present.document import read_plan, read_record, tell_progress
    from backlogctl.replay.present.status import describe_recovery
    from backlogctl.replay.present.terminal import render_head, render_plan_view, render_progress

    progress = tell_progress(read_record(workspace, recovery))
    if not progress["steps"]:
        return render_plan_view(read_plan(workspace, recovery, previews=True))
    verdict = describe_recovery(workspace, recovery)["verdict"]
    return Group(render_head(recovery, verdict), render_progress(progress, state=recovery.state))


_STDOUT = "-"


@verb
def report_recovery(
    session: Session,
    recovery: Annotated[str, typer.Argument(help="The recovery's id.")],
    html: Annotated[
        str | None,
        typer.Option(
            "--html",
            help="Write it as one HTML file that needs nothing else; `-` is stdout.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Report on a recovery for the incident review: what was lost, done, verified, by whom."""
    from backlogctl.errors import UsageError
    from backlogctl.replay.present.layout import Text, make_line
    from backlogctl.replay.present.report import make_report
    from backlogctl.replay.present.report_page import check_writable, render_summary, write_whole
    from backlogctl.replay.present.terminal import render_next
    from backlogctl.replay.runbooks.detection import describe_loss_ahead

    if html == _STDOUT and session.json:
        raise UsageError(
            "both would be on stdout", subject="--html - --json", hint="name a file after --html"
        )
    path = Path(html).expanduser() if html and html != _STDOUT else None
    if path is not None:
        check_writable(path)
    workspace = session.open_workspace()

    def look(stream: str, puts_back: bool) -> str:
        return describe_loss_ahead(workspace, stream, puts_back=puts_back)

    document = make_report(workspace, recovery, look)
    if html is not None:
        from backlogctl.replay.present.report_page import render_page

        page = render_page(document)
        if path is None:
            sys.stdout.flush()
            write_all(1, page)
            return
        write_whole(path, page)
        session.emit(document, make_line(Text.assemble(("wrote ", "dim"), (str(path), "bold"))))
        return
    session.emit(document, render_summary(document), render_next(*_list_next(document)))


def _list_next(document: dict[str, Any]) -> list[str]:
    commands: list[str] = document["standing"]["next"]
    return [*commands, f"backlogctl report {document['id']} --html report.html"]
