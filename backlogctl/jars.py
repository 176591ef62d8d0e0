"""Java libraries, fetched once into a cache.

What a set holds is written in a list: a Maven coordinate, a SHA-256 and a size in each line. It is
fetched into a temporary directory and renamed into place: it is complete or absent, also when two
processes fetch it at the same time.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from backlogctl.errors import EmbeddedError
from backlogctl.formats import Say, print_line

SUPPORTED_JAVA = (17, 21)
_STALLED_SECONDS = 60.0
_AT_ONCE = 8
_CENTRAL = "https://repo1.maven.org/maven2/"


class Jar(NamedTuple):
    """A line of a list."""

    group: str
    artifact: str
    version: str
    sha256: str
    size: int
    classifier: str = ""  # with its hyphen

    @property
    def name(self) -> str:
        """The file's name in the cache."""
        return f"{self.group}_{self.artifact}-{self.version}{self.classifier}.jar"

    @property
    def path(self) -> str:
        """The file's path in a Maven repository."""
        folder = f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}"
        return f"{folder}/{self.artifact}-{self.version}{self.classifier}.jar"

    def fetch(self, folder: Path) -> None:
        """Fetches the file.

        Raises:
            EmbeddedError: the repository is out of reach, or has another file.
        """
        url = os.environ.get("BACKLOG_MAVEN", _CENTRAL).rstrip("/") + f"/{self.path}"
        try:
            with urllib.request.urlopen(url, timeout=_STALLED_SECONDS) as answer:  # noqa: S310
                content = answer.read()
        except OSError as error:
            raise EmbeddedError(
                f"the Java library could not be fetched: {getattr(error, 'reason', error)}",
                subject=url,
                hint="can this machine reach it? BACKLOG_MAVEN names another mirror",
                retryable=True,
            ) from error
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise EmbeddedError(
                "the repository has another file than the one that was tested", subject=url
            )
        (folder / self.name).write_bytes(content)


def read_jars(listed: Path) -> tuple[Jar, ...]:
    """The lines of a list."""
    jars = []
    for line in listed.read_text().splitlines():
        coordinate, sha256, size = line.split()
        group, artifact, version, *rest = coordinate.split(":")
        classifier = "".join(f"-{word}" for word in rest)
        jars.append(Jar(group, artifact, version, sha256, int(size), classifier))
    return tuple(jars)


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
    hint = "install Java 17 or 21, for example `apt-get install default-jre-headless`"
    if not found or not Path(found).exists():
        raise EmbeddedError("no Java was found", subject=found or "java", hint=hint)
    done = subprocess.run([found, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(\d+)', done.stderr)
    if match is None or int(match[1]) < min(SUPPORTED_JAVA):
        version = done.stderr.strip().partition("\n")[0] or "it prints no version"
        raise EmbeddedError(f"Java is too old: {version}", subject=found, hint=hint)
    return Path(found), int(match[1])


def find_jars(listed: Path) -> Path:
    """Where a list's set is, or will be once it is fetched."""
    digest = hashlib.sha256(listed.read_bytes()).hexdigest()
    return cache_dir() / "jars" / f"{listed.stem}-{digest[:12]}"


def ensure_jars(listed: Path, progress: Say | None = None) -> tuple[Path, ...]:
    """The jars of a list, in alphabetical order; fetched at the first call on this machine.

    Raises:
        EmbeddedError: no cache directory, or the repository is out of reach.
    """
    final = find_jars(listed)
    if not final.is_dir():
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EmbeddedError(
                f"the cache directory cannot be made: {error.strerror}",
                subject=str(final.parent),
                hint="set BACKLOG_CACHE to a directory you can write",
            ) from error
        make_once(final, lambda work: _fetch(listed, final, work, progress or print_line))
    return tuple(sorted(final.glob("*.jar")))


def make_once(final: Path, make: Callable[[Path], None]) -> None:
    """Makes a folder, unless it is there: `make` fills an empty one, which then gets the name.

    Of several processes one does it, and the others wait. The folder above must exist; the name
    ends in `-` and a hash of what it is made from.
    """
    with (final.parent / f".{final.name.rpartition('-')[0]}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if final.is_dir():
            return
        with tempfile.TemporaryDirectory(prefix=f".{final.name}-", dir=final.parent) as scratch:
            work = Path(scratch, "made")
            work.mkdir()
            make(work)
            work.rename(final)


def _fetch(listed: Path, final: Path, work: Path, progress: Say) -> None:
    jars = read_jars(listed)
    size = sum(jar.size for jar in jars)
    progress(f"fetching {len(jars)} jars of {listed.stem}, {size / 1e6:.0f} MB, once, into {final}")
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for fetched in [pool.submit(jar.fetch, work) for jar in jars]:
            fetched.result()
