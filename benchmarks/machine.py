"""On what a benchmark ran."""

from __future__ import annotations

import os
import platform
from typing import Any

import confluent_kafka


def describe_machine() -> dict[str, Any]:
    """What all benchmarks note; `load_before` tells whether others were at work."""
    return {
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "confluent_kafka": confluent_kafka.version(),
        "librdkafka": confluent_kafka.libversion()[0],
        "load_before": round(os.getloadavg()[0], 2),
    }
