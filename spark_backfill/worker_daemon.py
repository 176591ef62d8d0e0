"""What Spark's Python workers are forked from: it has imported what all of them need.

A worker that imports by itself takes seconds before its first row. Spark starts this module in the
place of `pyspark.daemon`, where tasks run on the driver's machine (`spark.python.daemon.module`).
"""

from __future__ import annotations

import importlib

from pyspark import daemon

_NEEDED = (
    "backlogctl.spark_backfill.injection.verification",
    "backlogctl.spark_backfill.injection.waves",
    "backlogctl.spark_backfill.messages.staging",
)

if __name__ == "__main__":
    for name in _NEEDED:
        importlib.import_module(name)
    daemon.manager()  # type: ignore[no-untyped-call]
