"""Staged messages, as an approver sees them: their times, how long they take, and a few of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from backlogctl.config import Stream
from backlogctl.errors import BacklogError
from backlogctl.formats import format_moment
from backlogctl.manifests import Manifest, read_chunk, read_manifest
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.values import Fact
from backlogctl.replay.injection.plan import InjectionPlan
from backlogctl.replay.present.messages import Mask, mask_message
from backlogctl.schemas.codecs import PartDecoder, list_formats
from backlogctl.values import RecoveryState

# Chunks that are further apart in time were not sent one after the other, in seconds.
_PAUSE = 60.0


def describe_staged(
    workspace: Workspace, stream: Stream, manifest: Manifest
) -> dict[str, str | float | None]:
    """The times of what is staged, and how fast the stream's last recovery went."""
    times: set[str] = set()
    directory = workspace.staging_of(manifest.recovery_id)
    for chunk in manifest.chunks:
        table = pq.read_table(directory / chunk.path, columns=["original_time"])
        edges = pc.min_max(table["original_time"]).as_py()
        times |= {edge for edge in edges.values() if edge is not None}
    return {
        "first_time": min(times, default=None),
        "last_time": max(times, default=None),
        "pace": _find_pace(workspace, stream),
    }


def _find_pace(workspace: Workspace, stream: Stream) -> float | None:
    """Messages a second of the stream's last recovery that took long enough to tell, without the
    pauses; None where there is none."""
    ledger = workspace.ledger
    for recovery in reversed(ledger.recoveries.list(stream.name, [RecoveryState.VERIFIED])):
        done = sorted(
            (record.injected_at, record.sent)
            for record in ledger.chunks.list(recovery.id)
            if record.injected_at is not None
        )
        steps = [
            ((at - before).total_seconds(), count) for (before, _), (at, count) in pairwise(done)
        ]
        moving = [(seconds, count) for seconds, count in steps if seconds < _PAUSE]
        if (took := sum(seconds for seconds, _ in moving)) >= 1.0:
            return sum(count for _, count in moving) / took
    return None


# A few of the staged messages: for the operator's terminal.

_SHOWN_MESSAGES = 3
_LONGEST_VALUE = 400


def preview_messages(
    workspace: Workspace, plan: InjectionPlan, recovery_id: str
) -> tuple[Fact, ...]:
    """Read from the staged files; nothing once these have expired."""
    stream = workspace.config.streams.get(plan.stream)
    if stream is None:
        return ()
    mask, directory = Mask.read(stream.mask), workspace.staging_of(recovery_id)
    try:
        manifest = read_manifest(directory, plan.manifest_sha256)
        rows: list[dict[str, Any]] = []
        for chunk in manifest.chunks:
            if len(rows) >= _SHOWN_MESSAGES:
                break
            rows += read_chunk(directory, chunk).slice(0, _SHOWN_MESSAGES).to_pylist()
    except BacklogError:
        return ()
    decoder = PartDecoder(list_formats(stream, workspace.config.registries))
    told = (_say_message(row, mask, decoder) for row in rows[:_SHOWN_MESSAGES])
    return tuple(Fact("message", text, shows_rows=True) for text in told)


def _say_message(row: dict[str, Any], mask: Mask, decoder: PartDecoder) -> str:
    """`partition 0, 2026-11-20 12:00:00Z, key 4711: {"order": 4711}`."""
    headers = [(one["name"], one["value"]) for one in row["headers"]]
    shown = mask_message(
        mask,
        partition=row["partition"],
        offset=0,
        timestamp=None,
        key=row["key"],
        value=row["value"],
        headers=headers,
        decoder=decoder,
    )
    key, value = shown.key, shown.value
    at = format_moment(row["original_time"]) if row["original_time"] else "no time"
    return f"to partition {row['partition']}, {at}, key {key.fold()}: {value.fold(_LONGEST_VALUE)}"
