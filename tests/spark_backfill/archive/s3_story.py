"""A process of its own, as one Spark is: an archive in an object store, written, read and purged.

`python -m tests.spark_backfill.archive.s3_story BOOTSTRAP TOPIC ENDPOINT LOCATION` prints what came
of it as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from backlogctl.config import SparkSection
from backlogctl.errors import BacklogError
from backlogctl.spark_backfill.archive.job import ArchiveJob, ArchiveProgress
from backlogctl.spark_backfill.archive.place import ArchivePlace
from backlogctl.spark_backfill.archive.reading import read_archive
from backlogctl.spark_backfill.archive.verification import (
    purge_archive,
    read_archive_manifest,
    verify_archive,
)
from backlogctl.spark_backfill.archive.writing import write_archive
from backlogctl.spark_backfill.spark.cluster import needs_s3
from backlogctl.spark_backfill.spark.session import open_session
from tests.spark_backfill.archive import archiving


class Stopped(Exception):
    """As a pause."""


def main(bootstrap: str, topic: str, endpoint: str, location: str) -> dict[str, Any]:
    conf = {
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.sql.shuffle.partitions": "2",
    }
    section = SparkSection(master="local[2]", conf=conf)
    spark = open_session(section, "archive on S3", s3=needs_s3(location))
    job = archiving.make_job(bootstrap, topic, location, bytes_per_message=1, file_bytes=5)
    found: dict[str, Any] = {}
    try:
        _write_a_part(spark, job)
        manifest = write_archive(spark, job)
        place = ArchivePlace(spark, location)
        found["files"] = len(manifest.files)
        read = archiving.collect(read_archive(spark, location, manifest))
        found["equal"] = read == archiving.consume(bootstrap, topic, job.ranges)
        found["count"] = len(read)
        found["same"] = read_archive_manifest(spark, location, manifest.sha256()) == manifest
        broken, gone = (file.path for file in manifest.files[:2])
        place.write_text(broken, "x" * manifest.files[0].bytes)
        place.delete(gone)
        place.write_text("partition=0/extra.parquet", "x")
        check = verify_archive(spark, location, manifest)
        found["bad"] = [list(check.missing), list(check.corrupt), list(check.unexpected)]
        found["expected"] = [[gone], [broken], ["partition=0/extra.parquet"]]
        found["purged"] = purge_archive(
            spark, location, owner={"recovery_id": job.recovery_id}
        ).files
        found["left"] = place.list_files()
    finally:
        spark.stop()
    return found


def _write_a_part(spark: Any, job: ArchiveJob) -> None:
    """Stopped after the first batch, and with the remains of a task that was killed."""

    def stop(progress: ArchiveProgress) -> None:
        raise Stopped

    try:
        write_archive(spark, job, on_progress=stop)
    except Stopped:
        ArchivePlace(spark, job.location).write_text("partition=0/remains.parquet", "half")


if __name__ == "__main__":
    try:
        print(json.dumps(main(*sys.argv[1:])))
    except BacklogError as error:
        print(json.dumps(error.to_json()))
