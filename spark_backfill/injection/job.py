"""The input and the result of an injection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from backlog.manifest import Manifest
from spark_backfill.injection.pacing import MAX_CHUNKS
from spark_backfill.injection.snapshots import LedgerSnapshot
from spark_backfill.injection.targets import HIDDEN_SECONDS, PATIENCE
from spark_backfill.injection.transactional import (
    DEFAULT_MAX_MESSAGE_BYTES,
    DEFAULT_PREFIX,
    TRANSACTION_TIMEOUT_MS,
    WriterSettings,
)


@dataclass(frozen=True, slots=True)
class InjectionJob:
    """One approved and staged recovery; `properties` hold secrets and are not in its repr.

    Attributes:
        topic_id, partitions: of the target topic when the plan was made.
        directory: the recovery's staging directory, `<staging>/<recovery id>`.
        ledger: the Kafka ledger when the plan was made.
        start_offsets: the target topic's ends when the plan was made (`record_target_ends`).
        group: of the stream; where it has members it must commit past the canary.
        messages_per_second: over all slots; None for as fast as it goes.
        canary_wait: seconds for the group to commit past the canary.
        hidden_wait: seconds for which an open transaction of somebody else that hides the canary is
            waited for.
        wave_chunks: at most so many chunks of one slot in one wave.
        patience: seconds for which a chunk is tried again while brokers are away.
    """

    recovery_id: str
    topic: str
    topic_id: str
    partitions: int
    plan_hash: str
    manifest: Manifest
    directory: Path
    properties: Mapping[str, str] = field(repr=False)
    ledger: LedgerSnapshot
    start_offsets: Mapping[int, int]
    group: str | None = None
    messages_per_second: int | None = None
    prefix: str = DEFAULT_PREFIX
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    canary_wait: float = 60.0
    hidden_wait: float = HIDDEN_SECONDS
    wave_chunks: int = MAX_CHUNKS
    patience: float = PATIENCE

    def writer_settings(self, max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES) -> WriterSettings:
        """What the executors need of it."""
        return WriterSettings(
            properties=dict(self.properties),
            topic=self.topic,
            recovery_id=self.recovery_id,
            plan_hash=self.plan_hash,
            ledger=self.ledger,
            prefix=self.prefix,
            transaction_timeout_ms=self.transaction_timeout_ms,
            max_message_bytes=max_message_bytes,
        )


@dataclass(frozen=True, slots=True)
class InjectionResult:
    """Every staged message is committed; `skipped` ones were so before this run."""

    injected: int
    skipped: int
    waves: int
    seconds: float
