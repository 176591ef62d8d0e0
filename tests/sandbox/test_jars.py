"""The Java libraries: there in full or not at all, and a plain word when they cannot be had."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from backlogctl.errors import EmbeddedError
from backlogctl.jars import cache_dir, ensure_jars, find_java, read_jars
from backlogctl.sandbox.embedded import ensure_kafka_jars
from backlogctl.spark_backfill.spark.session import SPARK_JARS, ensure_spark_jars


@pytest.mark.kafka
def test_the_jars_hold_kafka_and_the_connector() -> None:
    names = " ".join(jar.name for jar in ensure_kafka_jars())
    for wanted in ("kafka_2.13-4.3.1", "kafka-clients", "slf4j-simple", "snappy-java", "zstd-jni"):
        assert wanted in names
    assert len(ensure_spark_jars()) == 6
    # Cached: nothing is told, because nothing is fetched.
    told: list[str] = []
    assert ensure_kafka_jars(told.append)
    assert told == []


def test_an_unreachable_repository_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKLOG_CACHE", str(tmp_path))
    monkeypatch.setenv("BACKLOG_MAVEN", "http://127.0.0.1:9/")
    told: list[str] = []
    with pytest.raises(EmbeddedError, match="could not be fetched") as caught:
        ensure_spark_jars(told.append)
    assert "BACKLOG_MAVEN" in caught.value.hint
    assert caught.value.retryable
    assert len(told) == 1
    assert [path.name for path in (tmp_path / "jars").iterdir()] == [".spark.lock"]


def make_repository(place: Path) -> str:
    """A Maven repository of what this machine has fetched already: the network may be away."""
    kept = ensure_spark_jars()[0].parent
    for jar in read_jars(SPARK_JARS):
        (place / jar.path).parent.mkdir(parents=True)
        (place / jar.path).symlink_to(kept / jar.name)
    return f"{place.as_uri()}/"


@pytest.mark.kafka
def test_two_processes_may_fetch_at_the_same_time(tmp_path: Path) -> None:
    code = "from backlogctl.spark_backfill.spark.session import ensure_spark_jars; print(len(ensure_spark_jars()))"
    settings = (f"BACKLOG_CACHE={tmp_path}", f"BACKLOG_MAVEN={make_repository(tmp_path / 'maven')}")
    command = ["env", *settings, sys.executable, "-c", code]
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=240) for process in both]
    assert [out.strip() for out, _ in answers] == ["6", "6"]
    assert sum("fetching 6 jars" in err for _, err in answers) == 1


def test_another_file_than_the_listed_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = tmp_path / "one.jars"
    listed.write_text(f"a.b:c:1.0 {'0' * 64} 3\n")
    (jar,) = read_jars(listed)
    (tmp_path / "maven" / jar.path).parent.mkdir(parents=True)
    (tmp_path / "maven" / jar.path).write_bytes(b"bad")
    monkeypatch.setenv("BACKLOG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BACKLOG_MAVEN", (tmp_path / "maven").as_uri())
    with pytest.raises(EmbeddedError, match="another file") as caught:
        ensure_jars(listed)
    assert caught.value.subject.endswith("/a/b/c/1.0/c-1.0.jar")
    assert [path.name for path in (tmp_path / "cache" / "jars").iterdir()] == [".one.lock"]


def test_a_missing_java_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EmbeddedError, match="no Java") as caught:
        find_java()
    assert "17 or 21" in caught.value.hint


def test_an_old_java_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EmbeddedError, match="too old"):
        find_java()


def test_the_cache_is_where_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BACKLOG_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "backlogctl"
    monkeypatch.setenv("BACKLOG_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"
