"""Java libraries, fetched once into a cache.

Ivy, which comes with PySpark, does the fetching, so nothing but Java has to be installed. A set of
jars is retrieved into a temporary directory and renamed into place: it is complete or absent,
also when two processes fetch it at the same time.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from backlog.errors import EmbeddedError
from backlog.progress import Say, print_line

SUPPORTED_JAVA = (17, 21)
_FETCH_TIMEOUT = 900
_CENTRAL = "https://repo1.maven.org/maven2/"


class Artifact(NamedTuple):
    """A Maven artifact; `transitive` takes what it needs at run time as well."""

    group: str
    name: str
    version: str
    transitive: bool = False


def cache_dir() -> Path:
    """Where fetched jars are kept: BACKLOG_CACHE, else `backlogctl` in the user's cache."""
    if own := os.environ.get("BACKLOG_CACHE"):
        return Path(own).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "backlogctl"


def find_java() -> Path:
    """The `java` to run: JAVA_HOME's, else the one on the PATH; its version is checked."""
    return _find_java()[0]


def find_java_version() -> int:
    """The major version of `find_java`."""
    return _find_java()[1]


def _find_java() -> tuple[Path, int]:
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    hint = "install Java 17 or 21, for example `apt-get install openjdk-17-jre-headless`"
    if not found or not Path(found).exists():
        raise EmbeddedError("no Java was found", subject=found or "java", hint=hint)
    done = subprocess.run([found, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(\d+)', done.stderr)
    if match is None or int(match[1]) < min(SUPPORTED_JAVA):
        version = done.stderr.strip().partition("\n")[0] or "it prints no version"
        raise EmbeddedError(f"Java is too old: {version}", subject=found, hint=hint)
    return Path(found), int(match[1])


def find_jars(name: str, artifacts: tuple[Artifact, ...]) -> Path:
    """Where a set is, or will be once it is fetched."""
    wanted = hashlib.sha256(repr(artifacts).encode()).hexdigest()
    return cache_dir() / "jars" / f"{name}-{wanted[:12]}"


def ensure_jars(
    name: str, artifacts: tuple[Artifact, ...], progress: Say | None
) -> tuple[Path, ...]:
    """The jars of a set, in alphabetical order; fetched at the first call on this machine.

    Raises:
        EmbeddedError: no Java, no cache directory, or the repository is out of reach.
    """
    final = find_jars(name, artifacts)
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
                _fetch(java, name, artifacts, final, progress or print_line)
    return tuple(sorted(final.glob("*.jar")))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(
    java: Path, name: str, artifacts: tuple[Artifact, ...], final: Path, progress: Say
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
        # One each: two sets may be fetched at the same time.
        command += ["-cache", str(cache_dir() / "ivy" / name), "-confs", "default"]
        # OSGi bundles are jars under another name: snappy and the Scala logger come as such.
        command += ["-types", "jar", "bundle"]
        command += ["-retrieve", str(work / "jars" / "[organisation]_[artifact]-[revision].[ext]")]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise EmbeddedError(
                f"the Java libraries did not arrive within {_FETCH_TIMEOUT} s",
                subject=main.name,
                hint="look at the connection to Maven Central, and try again",
                retryable=True,
            ) from error
        fetched = sorted((work / "jars").glob("*.jar"))
        missing = [a.name for a in artifacts if not any(a.name in jar.name for jar in fetched)]
        if done.returncode or missing or "UNRESOLVED DEPENDENCIES" in done.stdout:
            raise EmbeddedError(
                f"the Java libraries could not be fetched: {_ivy_reason(done)}",
                subject=f"{main.group}:{main.name}:{main.version}",
                hint=f"is {_repository()} reachable from here? BACKLOG_MAVEN names another mirror",
                retryable=True,
            )
        (work / "jars").rename(final)
    size = sum(jar.stat().st_size for jar in final.glob("*.jar"))
    progress(f"fetched {len(fetched)} jars, {size / 1e6:.0f} MB")


def _ivy_reason(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
    for marker in ("UnknownHost", "Exception", "ERROR", "not found", "failed"):
        for line in lines:
            if marker in line:
                return line[:300]
    return f"Ivy ended with {done.returncode}"


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    for place in spec.submodule_search_locations or () if spec else ():
        for jar in sorted(Path(place).glob("jars/ivy-*.jar")):
            return jar
    raise EmbeddedError(
        "Ivy was not found in PySpark's jars",
        subject="pyspark",
        hint="pip install 'backlogctl[spark]'",
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
