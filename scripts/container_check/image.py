"""The instructions of a Dockerfile, carried out in directories: chroot instead of a builder."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

MIRROR = "http://deb.debian.org/debian"
# What Debian's official slim images leave out.
_SLIM = "\n".join(f"path-exclude /usr/share/{name}/*" for name in ("doc", "info", "locale", "man"))
# The stand-ins for images of others: Debian's own PostgreSQL, Prometheus and Java.
_STANDINS = ("postgresql", "openjdk-17-jre-headless", "wget", "prometheus")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# This machine's own way to registries; nothing of it is in an image.
_NETWORK = ("PIP_CERT", "SSL_CERT_FILE", "http_proxy", "https_proxy", "no_proxy")
_NETWORK_FILES = (
    "/etc/resolv.conf",
    "/etc/pip.conf",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/certs/java/cacerts",
)


@dataclass
class Stage:
    """A directory and what later instructions need to know."""

    root: Path
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": _PATH})
    shell: tuple[str, ...] = ("/bin/sh", "-c")
    user: str = "0:0"
    directory: str = "/"


def read_instructions(text: str) -> list[tuple[str, str]]:
    """Each instruction's name and its text; lines that go on are joined."""
    written = (line for line in text.splitlines() if line.strip())
    lines = [line for line in written if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    found = []
    for line in joined.splitlines():
        name, _, rest = line.strip().partition(" ")
        found.append((name.upper(), re.sub(r"\s+", " ", rest).strip()))
    return found


def make_base(place: Path) -> Path:
    """Debian 12, as small as its slim image."""
    root = place / "debian"
    if not (root / "etc/debian_version").exists():
        run("debootstrap", "--variant=minbase", "bookworm", str(root), MIRROR)
    (root / "etc/dpkg/dpkg.cfg.d/slim").write_text(_SLIM + "\n")
    return root


def make_standins(place: Path) -> Path:
    """One directory that stands in for the images of Kafka, PostgreSQL and Prometheus."""
    root = place / "standins"
    if not root.exists():
        copy_root(make_base(place), root)
        stage = Stage(root)
        packages = " ".join(_STANDINS)
        enter(
            stage,
            "printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d;"
            "chmod +x /usr/sbin/policy-rc.d;"
            "apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y "
            f"--no-install-recommends {packages} && useradd --uid 1000 appuser;"
            "install -d -o appuser /var/lib/kafka/data; install -d -o nobody /prometheus;"
            "install -d -o postgres -g postgres /var/lib/postgresql/data",
        )
    return root


def build(source: Path, place: Path) -> Stage:
    """Carries out docker/Dockerfile; the last stage is left in `place`/image."""
    base = make_base(place)
    allowed = [
        line[1:]
        for line in (source / "docker/Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    stages: dict[str, Stage] = {}
    stage = Stage(base)
    for name, rest in read_instructions((source / "docker/Dockerfile").read_text()):
        sys.stderr.write(f"{name} {rest[:100]}\n")
        match name:
            case "FROM":
                image, _, alias = rest.partition(" AS ")
                root = place / (alias or "image")
                shutil.rmtree(root, ignore_errors=True)
                before = stages.get(image)
                copy_root(before.root if before else base, root)
                # A stage has the environment and shell of the one that it is made from.
                stage = (
                    Stage(root, dict(before.environment), before.shell) if before else Stage(root)
                )
                stages[alias or "image"] = stage
            case "SHELL":
                stage.shell = tuple(word.strip(' "') for word in rest.strip("[]").split(","))
            case "ARG":
                key, _, value = rest.partition("=")
                stage.environment[key] = value
            case "ENV":
                for word in shlex.split(rest):
                    key, _, value = word.partition("=")
                    stage.environment[key] = value.replace("$PATH", stage.environment["PATH"])
            case "WORKDIR":
                stage.directory = rest
                (stage.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "COPY":
                copy(stage, rest, stages, source, allowed)
            case "RUN":
                enter(stage, rest)
            case "USER":
                stage.user = rest
            case "LABEL" | "CMD":
                pass
            case _:
                raise SystemExit(f"{name} is not known here")
    return stage


def copy(
    stage: Stage, rest: str, stages: dict[str, Stage], source: Path, allowed: list[str]
) -> None:
    """COPY, from the context (what the ignore file lets in) or another stage."""
    words = shlex.split(rest)
    origin = source
    if words[0].startswith("--from="):
        origin = stages[words.pop(0).removeprefix("--from=")].root
    *names, target = words
    into = (
        stage.root / target.lstrip("/")
        if target.startswith("/")
        else (stage.root / stage.directory.lstrip("/") / target)
    )
    for name in names:
        if origin is source and name not in allowed:
            raise SystemExit(f"COPY {name}: the ignore file leaves it out")
        found = origin / name.lstrip("/")
        if found.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.pyc") if origin is source else None
            shutil.copytree(found, into, symlinks=True, ignore=ignored, dirs_exist_ok=True)
        else:
            into.mkdir(parents=True, exist_ok=True)
            shutil.copy(found, into)


def enter(stage: Stage, command: str) -> None:
    """RUN: as root, with the stage's environment and /proc of its own."""
    for name in _NETWORK_FILES:
        if Path(name).exists():
            (stage.root / name[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(name, stage.root / name[1:])
    # As an engine does.
    names = ("localhost", socket.gethostname())
    (stage.root / "etc/hosts").write_text("".join(f"127.0.0.1 {name}\n" for name in names))
    environment = {
        **{name: os.environ[name] for name in _NETWORK if name in os.environ},
        **stage.environment,
    }
    inner = f"cd {shlex.quote(stage.directory)}; {command}"
    run(
        *("unshare", "--mount", "--pid", "--fork", f"--mount-proc={stage.root}/proc"),
        *("chroot", str(stage.root), *stage.shell, inner),
        environment=environment,
    )


def copy_root(root: Path, into: Path) -> None:
    """A directory tree with its owners, links and devices."""
    run("cp", "-a", "--reflink=auto", str(root), str(into))


def run(*command: str, environment: dict[str, str] | None = None) -> None:
    """A command that must succeed; its output goes to stderr."""
    subprocess.run(command, check=True, stdout=sys.stderr, env=environment)
