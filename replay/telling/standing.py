"""How a recovery stands: who reads, who is stopped, what is only in a temporary topic, what next.

One value for the terminal, JSON, the scheduler and the page; each draws the same lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backlog.errors import BacklogError
from backlog.numbers import format_count, format_moment, format_plural
from backlog.values import Recovery, RecoveryState
from backlogctl_delivery.visible import escape_text
from replay.recovery.failing import STANDING
from replay.recovery.workspace import Workspace
from replay.telling.documents import list_next_commands
from replay.telling.standings import InArchive, OnlyThere, PutBack, Readers, Reads, Standing

Document = Mapping[str, Any]


def make_standing(
    workspace: Workspace,
    recovery: Recovery,
    readers: Readers,
    *,
    stopped: str = "",
    only_there: OnlyThere | None = None,
    put_back: PutBack | None = None,
    archive: InArchive | None = None,
    problem: str = "",
) -> Standing:
    """With what is told of every kind in the same way."""
    ledger = workspace.ledger
    runner = ledger.leases.find_runner(recovery.id)
    running = recovery.state is RecoveryState.RUNNING and runner is not None
    commands = list_next_commands(workspace, recovery)
    if running and not recovery.requested:
        commands = [f"backlogctl show {recovery.id} --watch"]
    return Standing(
        recovery=recovery.id,
        kind=recovery.kind,
        state=recovery.state,
        runner=None if runner is None else str(runner),
        readers=readers,
        stopped=stopped,
        only_there=only_there,
        retention_held=tuple(
            f"{name} of topic {hold.topic}"
            + (" (not in force: somebody changed it)" if hold.in_force is False else "")
            for hold in ledger.holds.list(holder=recovery.id)
            for name in sorted(hold.raised)
        ),
        put_back=put_back,
        next_commands=tuple(commands),
        problem=problem,
        at=ledger.now(),
        archive=archive,
    )


def find_standing(
    workspace: Workspace, recovery: Recovery, *, ask: bool = True
) -> dict[str, Any] | None:
    """The document of a recovery's standing; None where it changed nothing, or all is settled.

    Raises:
        Refused: this program does not know the kind, or cannot read its plan.
    """
    if not workspace.ledger.steps.list(recovery.id):
        return None
    if not ask and (last := workspace.ledger.events.list(recovery.id)[-1]).action == STANDING:
        return dict(last.detail)  # nothing has happened since
    found: Standing = workspace.kind_of(recovery).describe_standing(workspace, recovery, ask=ask)
    return None if found.is_settled else found.to_json()


def list_open_standings(workspace: Workspace, stream: str) -> list[dict[str, Any]]:
    """Of the stream's recoveries that stop consumers and are not at an end."""
    found = []
    states = (RecoveryState.RUNNING, RecoveryState.PAUSED, RecoveryState.FAILED)
    for recovery in workspace.ledger.recoveries.list(stream, states):
        if not recovery.stops_consumers:
            continue
        try:
            standing = find_standing(workspace, recovery)
        except BacklogError:
            continue  # another program's: `recoveries` shows it
        if standing is not None:
            found.append(standing)
    return found


def list_lines(standing: Document) -> list[tuple[str, str]]:
    """What is told, as (name, sentence), without the next command."""
    lines = [
        ("recovery", _say_state(standing)),
        ("reads", _say_readers(standing)),
        ("stopped", standing["stopped"] or "nobody"),
    ]
    if standing["temporary"] is not None:
        lines.append(("only in the temporary topic", _say_only_there(standing["temporary"])))
    if (archive := standing.get("archive")) is not None:
        many = format_plural(archive["messages"], "message")
        only = "" if archive["is_only_there"] else "; the topic has them too"
        lines.append(("in the archive", f"{many}, in {archive['location']}{only}"))
    if standing["put_back"] is not None:
        back = standing["put_back"]
        lines.append(
            ("put back", f"{back['done']:,} of {format_plural(back['planned'], 'message')}")
        )
    else:
        held = standing["retention_held"]
        lines.append(("retention", f"held: {', '.join(held)}" if held else "not held by it"))
    if standing["problem"]:
        lines.append(("unknown because", standing["problem"]))
    return lines


def say_standing(standing: Document) -> str:
    """The same as one text of several lines, for a log or a message."""
    lines = [f"{name}: {told}" for name, told in list_lines(standing)]
    lines += [f"next: {command}" for command in standing["next_commands"]]
    return "\n".join(map(escape_text, lines))


def _say_state(standing: Document) -> str:
    told = f"{standing['kind']} {standing['recovery']} is {standing['state']}"
    if standing["runner"]:
        return f"{told}; {standing['runner']} works on it"
    return f"{told}; nobody works on it" if standing["state"] == "running" else told


def _say_readers(standing: Document) -> str:
    originals, recovery = standing["originals"], standing["recovery_consumers"]
    ours = "an unknown number of recovery consumers"
    if recovery is not None:
        ours = format_plural(recovery, "recovery consumer")
    theirs = "the group's own consumers"
    if originals is not None:
        theirs = f"{format_plural(originals, 'member')} of the original group"
    return {
        Reads.NOBODY: "nobody",
        Reads.ORIGINALS: theirs,
        Reads.RECOVERY: ours,
        Reads.BOTH: f"{theirs}, and {ours}",
        Reads.UNKNOWN: "unknown",
    }[Reads(standing["reads"])]


def _say_only_there(only: Document) -> str:
    messages, last = only["messages"], only["last"]
    if messages == 0:
        return f"nothing; all of topic {only['topic']} is handled"
    if messages is not None:
        return f"at most {format_plural(messages, 'message')}, in topic {only['topic']}"
    if last is None:
        return f"unknown; topic {only['topic']} was never read"
    at = format_moment(last["at"])
    return f"unknown; {format_count(last['messages'])} at {at}, when topic {only['topic']} was read"
