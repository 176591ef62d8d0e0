"""What Spark's Python workers are forked from: it has imported what all of them need.

A worker that imports by itself takes seconds before its first row. Spark starts this module in the
place of `pyspark.daemon`, where tasks run on the driver's machine (`spark.python.daemon.module`).
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from importlib.machinery import PathFinder

# Spark puts archives of itself in front: pyspark.zip, py4j-0.10-src.zip, and its core's jar. Python
# before 3.12 reads their directories again for each task (gh-103200): 0.2 s. What is installed
# beside them is the same.
_ARCHIVE = re.compile(r"(pyspark|py4j)[^/]*\.zip$|\.jar$")
_installed = [place for place in sys.path if not _ARCHIVE.search(place)]
if PathFinder.find_spec("pyspark", _installed) and PathFinder.find_spec("py4j", _installed):
    for place in set(sys.path) - set(_installed):
        sys.path_importer_cache.pop(place, None)
    sys.path[:] = _installed

from pyspark import daemon  # noqa: E402

_NEEDED = (
    "pandas",  # pyarrow imports it for some of its conversions
    "backlogctl.spark_backfill.injection.verification",
    "backlogctl.spark_backfill.injection.waves",
    "backlogctl.spark_backfill.messages.staging",
)

if __name__ == "__main__":
    for name in _NEEDED:
        importlib.import_module(name)
    with contextlib.suppress(Exception):  # the extra `wire` is not here; who needs it says so
        importlib.import_module("backlogctl.spark_backfill.injection.batch_producer")
    daemon.manager()  # type: ignore[no-untyped-call]
