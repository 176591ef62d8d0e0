"""Whether the brokers' disks have space for what is to be put back."""

from __future__ import annotations

from backlog.clock import Deadline
from backlog.config.sections import Cluster
from backlog.kafka.log_dirs import read_log_dirs
from backlog.manifest import Manifest
from backlog.numbers import format_bytes
from spark_backfill.injection.disk_brake import measure_room

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
