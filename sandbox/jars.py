"""The jars of a Kafka broker."""

from __future__ import annotations

from pathlib import Path

from backlog.jars import ensure_jars
from backlog.progress import Say

KAFKA_VERSION = "4.3.1"
_LISTED = Path(__file__).with_name("kafka.jars")


def ensure_kafka_jars(progress: Say | None = None) -> tuple[Path, ...]:
    """The class path of a Kafka broker; fetched at the first call on this machine."""
    return ensure_jars(_LISTED, progress)
