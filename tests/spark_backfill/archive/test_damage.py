"""Damage to an archive is found by file, and nothing is sent from it; purging it leaves no rest."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backlogctl.archive_manifest import ARCHIVE_MANIFEST, ArchiveManifest
from backlogctl.errors import Refused, StagingError
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill.archive.verification import (
    ForeignArchive,
    Purged,
    purge_archive,
    read_archive_manifest,
    verify_archive,
)
from backlogctl.spark_backfill.archive.writing import write_archive
from tests.conftest import MakeTopic
from tests.spark_backfill.archive import archiving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """With a name that would be a pattern, were it taken for one."""
    return tmp_path / "offloads {a,b}" / "r-1 [x] 100%"


@pytest.fixture
def manifest(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, place: Path
) -> ArchiveManifest:
    name = topic(partitions=2, config=archiving.KEEP)
    archiving.publish(kafka.bootstrap, name, 20, 2)
    return write_archive(spark, archiving.make_job(kafka.bootstrap, name, place, partitions=2))


def test_missing_corrupt_and_unexpected_files_are_named(
    spark: SparkSession, manifest: ArchiveManifest, place: Path
) -> None:
    first, second = (place / file.path for file in manifest.files)
    whole = first.read_bytes()
    middle = len(whole) // 2
    first.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    check = verify_archive(spark, str(place), manifest)
    assert (check.corrupt, check.missing) == ((manifest.files[0].path,), ())
    assert not check.is_good
    quick = verify_archive(spark, str(place), manifest, rehash=False)
    assert quick.is_good, "the size alone does not tell"
    first.write_bytes(whole[:-1])
    assert not verify_archive(spark, str(place), manifest, rehash=False).is_good
    first.write_bytes(whole)
    second.rename(place / "partition=1" / "other.parquet")
    (place / "notes.txt").write_text("somebody's")
    check = verify_archive(spark, str(place), manifest)
    assert check.missing == (manifest.files[1].path,)
    assert check.unexpected == ("notes.txt", "partition=1/other.parquet")
    with pytest.raises(StagingError) as caught:
        check.require_good("archive r-1")
    told = str(caught.value)
    assert f"missing: {manifest.files[1].path}" in told
    assert "unexpected: notes.txt, partition=1/other.parquet" in told
    assert "nothing was sent" in told


def test_a_finished_archive_that_was_damaged_is_not_taken_for_finished(
    spark: SparkSession, kafka: EmbeddedKafka, topic: MakeTopic, place: Path
) -> None:
    name = topic(partitions=1, config=archiving.KEEP)
    archiving.publish(kafka.bootstrap, name, 20)
    job = archiving.make_job(kafka.bootstrap, name, place)
    file = place / write_archive(spark, job).files[0].path
    file.write_bytes(file.read_bytes()[::-1])
    with pytest.raises(StagingError, match="corrupt: partition=0/"):
        write_archive(spark, job)


def test_the_manifest_is_known_again_or_refused(
    spark: SparkSession, manifest: ArchiveManifest, place: Path
) -> None:
    path = place / ARCHIVE_MANIFEST
    assert read_archive_manifest(spark, str(place), manifest.sha256()) == manifest
    value = json.loads(path.read_text())
    path.write_text(json.dumps({**value, "group": "another"}))
    with pytest.raises(StagingError, match="not the one that was recorded; nothing was sent"):
        read_archive_manifest(spark, str(place), manifest.sha256())
    path.write_text(json.dumps({**value, "version": 2, "more": 1}))
    with pytest.raises(StagingError, match="later version of backlogctl"):
        read_archive_manifest(spark, str(place))
    path.write_text("[]")
    with pytest.raises(StagingError, match="not the manifest of an archive"):
        read_archive_manifest(spark, str(place))
    path.write_text("{")
    with pytest.raises(StagingError, match="holds no JSON"):
        read_archive_manifest(spark, str(place))
    path.unlink()
    with pytest.raises(StagingError, match="no finished archive is there"):
        read_archive_manifest(spark, str(place))


def test_files_and_folders_are_for_their_owner_only(manifest: ArchiveManifest, place: Path) -> None:
    assert len(manifest.files) == 2
    for path in [place, *place.rglob("*")]:
        wanted = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path
    names = {path.name for path in place.rglob("*") if path.is_file()}
    assert not any(name.endswith(".crc") or name == "_SUCCESS" for name in names)


def own(manifest: ArchiveManifest) -> dict[str, str]:
    return {"recovery_id": manifest.recovery_id, "plan_hash": manifest.plan_hash}


@pytest.mark.parametrize("without", ["_parts/job.json", "manifest.json", ""])
def test_fault_12_a_purge_deletes_nobody_elses_archive(
    spark: SparkSession, manifest: ArchiveManifest, place: Path, without: str
) -> None:
    if without:
        (place / without).unlink()
    before = sorted(place.rglob("*"))
    for name in own(manifest):
        with pytest.raises(ForeignArchive, match="another recovery or plan"):
            purge_archive(spark, str(place), owner={**own(manifest), name: "other"})
    assert sorted(place.rglob("*")) == before
    assert purge_archive(spark, str(place), owner=own(manifest)).files == 2


def test_purged_it_leaves_no_rest_and_may_be_purged_again(
    spark: SparkSession, manifest: ArchiveManifest, place: Path
) -> None:
    assert purge_archive(spark, str(place), owner=own(manifest)) == Purged(2, manifest.bytes)
    assert not place.exists()
    assert purge_archive(spark, str(place), owner=own(manifest)) == Purged(0, 0)


def test_what_is_none_of_the_archives_stays_when_it_is_purged(
    spark: SparkSession, manifest: ArchiveManifest, place: Path
) -> None:
    (place / "notes.txt").write_text("somebody's")
    assert purge_archive(spark, str(place), owner=own(manifest)).files == 2
    assert [path.name for path in place.rglob("*") if path.is_file()] == ["notes.txt"]
    with pytest.raises(Refused, match="does not look like an archive"):
        purge_archive(spark, str(place), owner=own(manifest))
    assert (place / "notes.txt").read_text() == "somebody's"
