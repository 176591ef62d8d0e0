"""Java libraries: Kafka's own and those Spark needs beside its own, fetched once into a cache.

Ivy, which comes with PySpark, does the fetching, so nothing but Java has to be installed. A set of
jars is retrieved into a temporary directory and renamed into place: it is there in full or not at
all, also when two processes want it at the same time.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from backlog.errors import EmbeddedError

Progress = Callable[[str], None]

KAFKA_VERSION = "4.3.1"
SUPPORTED_JAVA = (17, 21)
_FETCH_TIMEOUT = 900
_CENTRAL = "https://repo1.maven.org/maven2/"


class Artifact(NamedTuple):
    """A Maven artifact; `transitive` takes what it needs at run time as well."""

    group: str
    name: str
    version: str
    transitive: bool = False


KAFKA_ARTIFACTS = (
    Artifact("org.apache.kafka", "kafka_2.13", KAFKA_VERSION, transitive=True),
    Artifact("org.slf4j", "slf4j-simple", "1.7.36"),
)
# Spelled out instead of resolved: the rest of what the connector needs is in Spark's own jars, and
# a second Scala library or Spark core on the class path breaks it.
SPARK_ARTIFACTS = (
    Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.0.0"),
    Artifact("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    Artifact("org.apache.kafka", "kafka-clients", "3.9.0"),
    Artifact("org.apache.commons", "commons-pool2", "2.12.0"),
    Artifact("org.postgresql", "postgresql", "42.7.5"),
    Artifact("org.xerial", "sqlite-jdbc", "3.49.1.0"),
)


def ensure_kafka_jars(progress: Progress | None = None) -> tuple[Path, ...]:
    """The class path of a Kafka broker; fetched at the first call on this machine."""
    return _ensure("kafka", KAFKA_ARTIFACTS, progress)


def ensure_spark_jars(progress: Progress | None = None) -> tuple[Path, ...]:
    """The jars for `spark.jars`: the Kafka connector and the JDBC drivers."""
    return _ensure("spark", SPARK_ARTIFACTS, progress)


def cache_dir() -> Path:
    """Where fetched jars are kept: BACKLOG_CACHE, else `backlogctl` in the user's cache."""
    if own := os.environ.get("BACKLOG_CACHE"):
        return Path(own).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "backlogctl"


def find_java() -> Path:
    """The `java` to run: JAVA_HOME's, else the one on the PATH; its version is checked."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    hint = "install Java 17 or 21, for example `apt-get install openjdk-17-jre-headless`"
    if not found or not Path(found).exists():
        raise EmbeddedError("no Java was found", subject=found or "java", hint=hint)
    answer = subprocess.run([found, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(\d+)', answer.stderr)
    if match is None or int(match[1]) < min(SUPPORTED_JAVA):
        told = answer.stderr.strip().splitlines()
        raise EmbeddedError(
            f"Java is too old: {told[0] if told else 'no version told'}", subject=found, hint=hint
        )
    return Path(found)


def print_progress(line: str) -> None:
    """The usual progress callback: one line to stderr."""
    sys.stderr.write(f"{line}\n")


def _ensure(
    name: str, artifacts: tuple[Artifact, ...], progress: Progress | None
) -> tuple[Path, ...]:
    wanted = repr(artifacts).encode()
    final = cache_dir() / "jars" / f"{name}-{hashlib.sha256(wanted).hexdigest()[:12]}"
    if not final.is_dir():
        java = find_java()
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EmbeddedError(
                f"the cache directory cannot be made: {error.strerror}",
                subject=str(final.parent),
                hint="set BACKLOG_CACHE to a directory you can write",
            ) from error
        with _locked(final.parent / f".{name}.lock"):
            if not final.is_dir():
                _fetch(java, name, artifacts, final, progress or print_progress)
    return tuple(sorted(final.glob("*.jar")))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(
    java: Path, name: str, artifacts: tuple[Artifact, ...], final: Path, progress: Progress
) -> None:
    main = artifacts[0]
    progress(f"fetching {main.name} {main.version} and what it needs, once, into {final}")
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=final.parent) as scratch:
        work = Path(scratch)
        (work / "jars").mkdir()
        (work / "ivy.xml").write_text(_ivy_module(name, artifacts))
        (work / "settings.xml").write_text(_ivy_settings())
        command = [str(java), "-Xmx256m", "-jar", str(_ivy_jar())]
        command += ["-settings", str(work / "settings.xml"), "-ivy", str(work / "ivy.xml")]
        command += ["-cache", str(cache_dir() / "ivy"), "-confs", "default"]
        # OSGi bundles are jars under another name: snappy and the Scala logger come as such.
        command += ["-types", "jar", "bundle"]
        command += ["-retrieve", str(work / "jars" / "[organisation]_[artifact]-[revision].[ext]")]
        try:
            answer = subprocess.run(
                command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise EmbeddedError(
                f"the Java libraries did not arrive within {_FETCH_TIMEOUT} s",
                subject=main.name,
                hint="look at the connection to Maven Central, and try again",
                retryable=True,
            ) from error
        got = sorted((work / "jars").glob("*.jar"))
        missing = [a.name for a in artifacts if not any(a.name in jar.name for jar in got)]
        if answer.returncode or missing or "UNRESOLVED DEPENDENCIES" in answer.stdout:
            raise EmbeddedError(
                f"the Java libraries could not be fetched: {_ivy_reason(answer)}",
                subject=f"{main.group}:{main.name}:{main.version}",
                hint=f"is {_repository()} reachable from here? BACKLOG_MAVEN names another mirror",
                retryable=True,
            )
        (work / "jars").rename(final)
    size = sum(jar.stat().st_size for jar in final.glob("*.jar"))
    progress(f"fetched {len(got)} jars, {size / 1e6:.0f} MB")


def _ivy_reason(answer: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (answer.stdout + answer.stderr).splitlines()]
    for sign in ("UnknownHost", "Exception", "ERROR", "not found", "failed"):
        for line in lines:
            if sign in line:
                return line[:300]
    return f"Ivy ended with {answer.returncode}"


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    for place in spec.submodule_search_locations or () if spec else ():
        for jar in sorted(Path(place).glob("jars/ivy-*.jar")):
            return jar
    raise EmbeddedError(
        "Ivy was not found in PySpark's jars", subject="pyspark", hint="install pyspark 4"
    )


def _repository() -> str:
    return os.environ.get("BACKLOG_MAVEN", _CENTRAL)


def _ivy_module(name: str, artifacts: tuple[Artifact, ...]) -> str:
    needs = "\n".join(
        f'    <dependency org="{a.group}" name="{a.name}" rev="{a.version}"'
        f' transitive="{str(a.transitive).lower()}" conf="default->default"/>'
        for a in artifacts
    )
    return (
        f'<ivy-module version="2.0">\n  <info organisation="backlogctl" module="{name}"/>\n'
        f'  <configurations><conf name="default"/></configurations>\n'
        f"  <dependencies>\n{needs}\n  </dependencies>\n</ivy-module>\n"
    )


def _ivy_settings() -> str:
    return (
        '<ivysettings>\n  <settings defaultResolver="maven"/>\n  <resolvers>\n'
        f'    <ibiblio name="maven" m2compatible="true" root="{_repository()}"/>\n'
        "  </resolvers>\n</ivysettings>\n"
    )
