"""The JSON documents that the command line prints; the tables are drawn from the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from backlogctl.errors import BacklogError, Refused
from backlogctl.formats import format_count, format_moment, format_plural
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.next_commands import WayOut, find_standing, list_next_commands
from backlogctl.replay.engine.values import (
    InArchive,
    OnlyThere,
    PutBack,
    Readers,
    Reads,
    RecoveryStatus,
    Telling,
)
from backlogctl.values import Gap, LedgerEvent, Recovery, RecoveryState, to_document
from backlogctl_delivery.visible import escape_text

UNKNOWN = "unknown"


def describe_gap(gap: Gap) -> dict[str, Any]:
    """A gap as `gaps --json` prints it."""
    return to_document(
        gap,
        *("id", "stream", "topic", "group", "partition", "start", "end", "count"),
        *("likely", "cause", "certainty", "maybe_empty", "state"),
        *("first_time", "last_time", "detected_at"),
        *("reason", "archive", "sequences"),
    )


def describe_recovery(workspace: Workspace, recovery: Recovery) -> dict[str, Any]:
    """A recovery as `plan` and `show` print it.

    Where this program cannot read the plan, `problem` says why, and `plan` is what is stored.
    """
    common = {
        **to_document(
            recovery,
            *("id", "kind", "stream", "state", "plan_hash", "topic", "group", "created_at"),
            *("approved_by", "approved_identity", "approval_expires_at", "requested", "runner"),
            *("injected", "skipped", "detail"),
        ),
        "injects": _may_inject(workspace, recovery),
    }
    try:
        plan, told = workspace.plan_of(recovery), describe_recovery_plan(workspace, recovery)
    except Refused as refused:
        unread: dict[str, Any] = {
            "verdict": UNKNOWN,
            "counts": {},
            "partitions": [],
            "warnings": [],
            "size": None,
        }
        return {**common, **unread, "problem": str(refused), "plan": dict(recovery.plan)}
    return {
        **common,
        **told.document,
        "warnings": list(told.warnings),
        "other_groups": list(told.other_groups),
        "other_groups_unknown": told.others_unknown or None,
        "size": told.size,
        **to_document(plan, "planned_by", "planned_at"),
    }


def _may_inject(workspace: Workspace, recovery: Recovery) -> bool:
    """Whether its kind sends messages; what was sent counts where the kind is not known."""
    if recovery.kind not in workspace.kinds.names():
        return bool(recovery.injected)
    return workspace.kind_of(recovery).traits.injects


def describe_recovery_plan(workspace: Workspace, recovery: Recovery) -> Telling:
    """The plan for every renderer.

    Raises:
        Refused: this program does not know its kind, or cannot read its plan.
    """
    kind = workspace.kind_of(recovery)
    told: Telling = kind.tell(workspace.plan_now(recovery), recovery)
    return told


def preview_plan(workspace: Workspace, recovery: Recovery) -> Telling:
    """The plan for the operator's terminal, with a few messages where its kind shows some.

    Raises:
        Refused: this program does not know its kind, or cannot read its plan.
    """
    told = describe_recovery_plan(workspace, recovery)
    kind = workspace.kind_of(recovery)
    rows = kind.preview(workspace, workspace.plan_of(recovery), recovery)
    return replace(told, facts=(*told.facts, *rows))


def describe_run(
    workspace: Workspace, recovery: Recovery, run: Mapping[str, Any]
) -> dict[str, Any]:
    """A recovery as `run` prints it: what this run did, by its kind."""
    kind = workspace.kind_of(recovery)
    return {
        **run,
        **to_document(recovery, "id", "kind", "state", "stream"),
        "counts": kind.count_run(kind.read_plan(recovery), recovery, run.get("counts") or {}),
    }


def describe_event(event: LedgerEvent) -> dict[str, Any]:
    """One line of a recovery's record."""
    names = ("sequence", "at", "actor", "action", "detail", "hash")
    return to_document(event, *names)


# How a recovery stands: who reads, who is stopped, what is only in a temporary topic, what next.
#
# One value for the terminal, JSON, the scheduler and the page; each draws the same lines.

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
    way_out: WayOut | None = None,
) -> RecoveryStatus:
    """With what is told of every kind in the same way.

    Args:
        way_out: see `list_next_commands`.
    """
    ledger = workspace.ledger
    runner = ledger.leases.find_runner(recovery.id)
    return RecoveryStatus(
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
        next_commands=tuple(list_next_commands(workspace, recovery, way_out)),
        problem=problem,
        at=ledger.now(),
        archive=archive,
    )


def find_status(
    workspace: Workspace, recovery: Recovery, *, ask: bool = True
) -> dict[str, Any] | None:
    """The document of a recovery's standing; None where it changed nothing, or all is settled.

    Raises:
        Refused: this program does not know the kind, or cannot read its plan.
    """
    if not workspace.ledger.steps.list(recovery.id):
        return None
    if not ask and (known := find_standing(workspace.ledger.events.list(recovery.id))):
        return dict(known)
    found: RecoveryStatus = workspace.kind_of(recovery).describe_standing(
        workspace, recovery, ask=ask
    )
    return None if found.is_settled else found.to_json()


def list_open_standings(workspace: Workspace, stream: str) -> list[dict[str, Any]]:
    """Of the stream's recoveries that stop consumers and are not at an end."""
    found = []
    states = (RecoveryState.RUNNING, RecoveryState.PAUSED, RecoveryState.FAILED)
    for recovery in workspace.ledger.recoveries.list(stream, states):
        if not recovery.stops_consumers:
            continue
        try:
            standing = find_status(workspace, recovery)
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


def format_status(standing: Document) -> str:
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
