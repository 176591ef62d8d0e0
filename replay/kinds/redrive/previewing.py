"""A few of the staged messages, and the errors of dead letters: for the operator's terminal."""

from __future__ import annotations

from typing import Any

from backlog.errors import BacklogError
from backlog.manifest import read_chunk, read_manifest
from backlog.numbers import format_count, format_moment
from backlogctl_delivery.visible import escape_name
from replay.kinds.redrive.plan import RedrivePlan
from replay.recovery.workspace import Workspace
from replay.telling.messages import Mask, show_part
from replay.telling.value import Fact
from spark_backfill.redrive.errors_found import read_errors

_SHOWN_MESSAGES = 3
_SHOWN_ERRORS = 5
_LONGEST_LINE = 120
_LONGEST_VALUE = 400


def preview_redrive(workspace: Workspace, plan: RedrivePlan, recovery_id: str) -> tuple[Fact, ...]:
    """Read from the staged files; nothing once these have expired."""
    stream = workspace.config.streams.get(plan.stream)
    if stream is None:
        return ()
    mask, directory = Mask.read(stream.mask), workspace.staging_of(recovery_id)
    facts = []
    # An error's text may quote the message, any part of it.
    if mask == Mask():
        facts += [
            Fact("error", _say_error(one.error, one.line, one.count), shows_rows=True)
            for one in read_errors(directory)[:_SHOWN_ERRORS]
        ]
    try:
        manifest = read_manifest(directory, plan.manifest_sha256)
        rows: list[dict[str, Any]] = []
        for chunk in manifest.chunks:
            if len(rows) >= _SHOWN_MESSAGES:
                break
            rows += read_chunk(directory, chunk).slice(0, _SHOWN_MESSAGES).to_pylist()
    except BacklogError:
        return tuple(facts)
    for row in rows[:_SHOWN_MESSAGES]:
        facts.append(Fact("message", _say_message(row, mask), shows_rows=True))
    return tuple(facts)


def _say_error(error: str, line: str, count: int) -> str:
    told = escape_name(line[:_LONGEST_LINE])
    return f"{format_count(count)} × {error}" + (f": {told}" if told else "")


def _say_message(row: dict[str, Any], mask: Mask) -> str:
    """`partition 0, 2026-11-20 12:00:00Z, key 4711: {"order": 4711}`."""
    key = show_part(row["key"], mask, hides=mask.hides_key)
    value = show_part(row["value"], mask, hides=mask.hides_value, is_open=False)
    at = format_moment(row["original_time"]) if row["original_time"] else "no time"
    return f"to partition {row['partition']}, {at}, key {key.fold()}: {value.fold(_LONGEST_VALUE)}"
