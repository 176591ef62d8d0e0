"""What the steps of an injection work with: staged messages, Spark, the gaps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from backlogctl.clock import Deadline
from backlogctl.config.sections import Cluster
from backlogctl.errors import Refused
from backlogctl.formats import format_bytes
from backlogctl.kafka.log_dirs import read_log_dirs
from backlogctl.manifests import Manifest, read_manifest
from backlogctl.replay.engine.kind import RunContext
from backlogctl.replay.engine.plan import find_identity
from backlogctl.replay.injection.plan import InjectionPlan
from backlogctl.replay.present.layout import Bar
from backlogctl.spark_backfill.injection.brakes import measure_room
from backlogctl.spark_backfill.injection.snapshots import LedgerSnapshot
from backlogctl.values import GapState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Whether the brokers' disks have space for what is to be put back.

_SECONDS = 10.0


def warn_about_room(cluster: Cluster, topic: str, manifest: Manifest) -> list[str]:
    """What an approver should know; nothing where there is space, or where that is unknown: the run
    looks again before each wave, and stops where it gets tight."""
    found = read_log_dirs(cluster.client_properties(), topic, Deadline(_SECONDS))
    usable = [one.usable_bytes for one in found.brokers or () if one.usable_bytes is not None]
    needed = measure_room(manifest, manifest.count, found.replica_share).left
    if not usable or needed <= min(usable):
        return []
    return [
        f"they may take {format_bytes(needed)} on each broker, and the fullest one has "
        f"{format_bytes(min(usable))} left: the run stops before that is used up, and goes on when "
        "there is room"
    ]


@dataclass
class InjectionContext(RunContext[InjectionPlan]):
    """One run of one recovery that sends messages."""

    ledger_topic: LedgerSnapshot | None = None

    @cached_property
    def bar(self) -> Bar:
        """How many messages are put back."""
        return Bar(self.console, self.plan.message_count)

    @cached_property
    def target_id(self) -> str:
        """The id of the topic that gets the messages.

        Raises:
            Refused: the run has not made it yet.
        """
        target = self.plan.target
        if target is None:
            return self.plan.topic_id
        if target.topic_id is not None:
            return target.topic_id
        made = self.workspace.ledger.temporary_topics.get(self.recovery.id)
        if made is None or made.topic_id is None:
            raise Refused(
                "it is not made yet",
                subject=f"topic {target.topic}",
                hint="the run makes it",
            )
        return made.topic_id

    @cached_property
    def properties(self) -> Mapping[str, str]:
        """Client properties of the stream's cluster, secrets revealed."""
        return self.workspace.properties(self.stream)

    @property
    def directory(self) -> Path:
        """Where the staged messages lie."""
        return self.workspace.staging_of(self.recovery.id)

    @cached_property
    def manifest(self) -> Manifest:
        """The staged messages, exactly those of the plan.

        Raises:
            StagingError: they are missing or changed.
        """
        return read_manifest(self.directory, self.plan.manifest_sha256)

    @cached_property
    def spark(self) -> SparkSession:
        """Spark, started at the first use."""
        from backlogctl.spark_backfill.spark.kafka_options import make_java_options
        from backlogctl.spark_backfill.spark.session import open_session

        make_java_options(self.properties)  # refuses what it could not use
        self.bar.say("starting Spark")
        config, name = self.workspace.config, f"backlogctl run {self.recovery.id}"
        return open_session(config.spark, name, staging=config.staging.dir)

    def open(self) -> None:
        """Shows the bar."""
        self.bar.start()

    def close(self, error: BaseException | None) -> None:
        """Leaves the bar as it is."""
        self.bar.stop()

    def advance_gaps(self, to: GapState, before: Iterable[GapState]) -> None:
        """Moves the recovery's gaps that are in a state of `before`; later ones stay."""
        ledger = self.workspace.ledger
        allowed = set(before)
        ids = [
            gap_id
            for gap_id in ledger.recoveries.gap_ids(self.recovery.id)
            if ledger.gaps.get(gap_id).state in allowed
        ]
        if ids:
            ledger.gaps.advance(ids, to, recovery_id=self.recovery.id, actor=str(find_identity()))
