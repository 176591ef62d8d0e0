"""Surviving offsets that are no messages: control, aborted and compacted records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_backfill.evidence.survivors import LogSpan
from spark_backfill.request import PriorChunk, Stretch, count_offsets


@dataclass(frozen=True, slots=True)
class Holes:
    """Surviving `offsets` that no recovery wrote; `missing` of them are no messages."""

    offsets: int = 0
    missing: int = 0

    @property
    def share(self) -> float:
        """0 to 1; 0 where nothing survives."""
        return self.missing / self.offsets if self.offsets else 0.0


def measure_holes(
    spans: Sequence[LogSpan], prior: Sequence[PriorChunk], ours: Sequence[Stretch]
) -> Holes:
    """What survives, without what earlier recoveries wrote.

    Args:
        prior: their chunks; in a partition where the place of one is not known, only offsets below
            the first of our messages are judged.
        ours: the places that are known.
    """
    unknown = {chunk.slot for chunk in prior if chunk.first_offset is None}
    offsets = messages = 0
    for span in spans:
        if span.partition in unknown:
            offsets += span.span_before_ours
            messages += span.records_before_ours
        else:
            here = [item for item in ours if item.partition == span.partition]
            offsets += count_offsets(span.start, span.end, here)
            messages += span.records - span.ours
    return Holes(offsets, max(0, offsets - messages))
