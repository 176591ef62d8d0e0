"""Evidence that a row's message was not lost: one class a file, one contract for all."""

from __future__ import annotations

from backlogctl.spark_backfill.evidence.consumed import ConsumedEvidence
from backlogctl.spark_backfill.evidence.injected import (
    CONSUMED,
    INJECTED,
    LOST,
    OUTSIDE,
    QUARANTINED,
    SURVIVING,
    Evidence,
    InjectedEvidence,
    label_candidates,
)
from backlogctl.spark_backfill.evidence.survivors import SurvivorEvidence

__all__ = [
    "CONSUMED",
    "INJECTED",
    "LOST",
    "OUTSIDE",
    "QUARANTINED",
    "SURVIVING",
    "ConsumedEvidence",
    "Evidence",
    "InjectedEvidence",
    "SurvivorEvidence",
    "label_candidates",
]
