"""Whether an archive's files are there with their sizes: cheap, and asked right before a deletion.

Spark, which reads object stores, is started only for those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backlog.ledger.archives import ArchiveRecord

if TYPE_CHECKING:
    from replay.kinds.offload.context import OffloadContext


def check_files(context: OffloadContext, record: ArchiveRecord) -> None:
    """The manifest is the recorded one, and each of its files is there with its size.

    Raises:
        StagingError: names what is missing or changed.
    """
    from spark_backfill.archive.filesystem import normalize_location
    from spark_backfill.archive.local_place import LocalPlace, find_folder
    from spark_backfill.archive.verification import (
        check_place,
        read_manifest,
        read_manifest_of,
        verify_archive,
    )

    location, sha256 = normalize_location(record.location), record.manifest_sha256
    folder = find_folder(location)
    if folder is not None:
        place = LocalPlace(folder)
        check = check_place(place, read_manifest_of(place, sha256), rehash=False)
    else:
        spark = context.spark
        manifest = read_manifest(spark, location, sha256)
        check = verify_archive(spark, location, manifest, rehash=False)
    check.require_good(location)
