"""A process that writes an archive and says how far it is after each batch; it may be killed.

`python -m tests.spark_backfill.archive.killed BOOTSTRAP TOPIC LOCATION [SPARK]`, the last one as
JSON of the section `spark`.
"""

from __future__ import annotations

import json
import sys

from backlogctl.config import SparkSection
from backlogctl.spark_backfill.archive.job import ArchiveProgress
from backlogctl.spark_backfill.archive.writing import write_archive
from backlogctl.spark_backfill.spark.session import open_session
from tests.spark_backfill.archive import archiving


def main(
    bootstrap: str, topic: str, location: str, section: str = '{"master": "local[2]"}'
) -> None:
    spark = open_session(SparkSection(**json.loads(section)), "archive of a process")
    job = archiving.make_job(
        bootstrap, topic, location, partitions=3, bytes_per_message=1, file_bytes=10
    )

    def tell(progress: ArchiveProgress) -> None:
        print(json.dumps({"messages": progress.messages}), flush=True)

    manifest = write_archive(spark, job, on_progress=tell)
    print(json.dumps({"sha256": manifest.sha256()}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
