"""The archive of Spark's classes: used where it is, and in nobody's way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from backlogctl.spark_backfill.spark import session
from backlogctl.spark_backfill.spark.session import (
    DRIVER_OPTIONS,
    find_class_archive,
    make_conf,
    make_options,
)

_START = f"""
from backlogctl.config import SparkSection
from backlogctl.spark_backfill.spark.session import open_session
conf = {{"{DRIVER_OPTIONS}": "-Xlog:class+load:file=classes.log"}}
assert open_session(SparkSection(master="local[1]", conf=conf), "test").range(9).count() == 9
"""


def test_options_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "spark.jsa"
    monkeypatch.setattr(session, "find_class_archive", lambda: archive)
    assert make_options("") == ""
    archive.touch()
    option = f"-XX:SharedArchiveFile={archive}"
    assert make_options("-Xss4m") == option
    assert make_options("-Xshare:off") == make_options("-XX:SharedArchiveFile=/own.jsa") == ""
    own = {DRIVER_OPTIONS: "-Xss4m"}
    assert make_conf("local[*]", own)[DRIVER_OPTIONS] == f"-Xss4m -Duser.timezone=UTC {option}"
    assert option not in make_conf("local[*]", {})["spark.executor.extraJavaOptions"]


def test_a_path_that_would_be_two_options_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "two words" / "spark.jsa"
    archive.parent.mkdir()
    archive.touch()
    monkeypatch.setattr(session, "find_class_archive", lambda: archive)
    assert make_options("") == ""


@pytest.mark.spark
def test_java_takes_sparks_classes_from_it(tmp_path: Path) -> None:
    """Java says nothing where an archive does not fit: only the source of its classes tells."""
    if not find_class_archive().is_file():
        subprocess.run(
            [sys.executable, "-m", "backlogctl.spark_backfill.spark.class_archive_maker"],
            check=True,
        )
    subprocess.run([sys.executable, "-c", _START], cwd=tmp_path, check=True)
    loaded = [
        line
        for line in (tmp_path / "classes.log").read_text().splitlines()
        if " org.apache.spark." in line
    ]
    shared = [line for line in loaded if "source: shared objects file (top)" in line]
    assert len(shared) > len(loaded) / 2 > 1000


@pytest.mark.spark
def test_an_archive_that_does_not_fit_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "spark.jsa"
    broken.write_bytes(b"not an archive")
    code = f"""
from backlogctl.spark_backfill.spark import class_archive
class_archive.find_archive = lambda: __import__("pathlib").Path({str(broken)!r})
{_START}"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
