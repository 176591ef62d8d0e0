"""The jars of a Kafka broker."""

from __future__ import annotations

from pathlib import Path

from backlog.jars import Artifact, ensure_jars
from backlog.progress import Say

KAFKA_VERSION = "4.3.1"
KAFKA_ARTIFACTS = (
    Artifact("org.apache.kafka", "kafka_2.13", KAFKA_VERSION, transitive=True),
    Artifact("org.slf4j", "slf4j-simple", "1.7.36"),
)


def ensure_kafka_jars(progress: Say | None = None) -> tuple[Path, ...]:
    """The class path of a Kafka broker; fetched at the first call on this machine."""
    return ensure_jars("kafka", KAFKA_ARTIFACTS, progress)
