"""The services of compose.yaml, each in its own network, mount and host-name namespace.

The product's image is what `build` made; stand-ins made of Debian's packages and of Kafka's jars
take the place of others' images. Everything runs in a PID namespace that ends with this process.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from scripts.container_check.image import Stage, read_instructions
from scripts.container_check.standins import STANDINS

_PRODUCT = "10001:10001"
_SUBNET = "10.77.0"


@dataclass
class Service:
    name: str
    document: dict[str, Any]
    process: subprocess.Popen[bytes]
    environment: dict[str, str]
    user: str
    seconds: float = 0.0
    state: str = "starting"


def interpolate(text: str, variables: dict[str, str]) -> str:
    """`${NAME:-default}` and `$$`, as compose reads them."""

    def fill(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        name, _, default = match[1].partition(":-")
        return variables.get(name) or default

    return re.sub(r"\$\$|\$\{([^}]+)\}", fill, text)


def read_compose(source: Path, variables: dict[str, str]) -> dict[str, Any]:
    """The file with its variables filled in."""
    loaded = yaml.safe_load((source / "docker/compose.yaml").read_text())

    def visit(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: visit(item) for key, item in value.items()}
        if isinstance(value, list):
            return [visit(item) for item in value]
        return interpolate(value, variables) if isinstance(value, str) else value

    found: dict[str, Any] = visit(loaded)
    return found


class Stack:
    def __init__(self, source: Path, place: Path, variables: dict[str, str]) -> None:
        self._source, self._place = source, place
        self.services: dict[str, Service] = {}
        self.load(variables)
        self._state = place / "state"
        shutil.rmtree(self._state, ignore_errors=True)
        (self._state / "volumes").mkdir(parents=True)
        self._make_network()

    def load(self, variables: dict[str, str]) -> None:
        """Reads the file again, with other variables."""
        self._compose = read_compose(self._source, variables)
        self._documents: dict[str, Any] = self._compose["services"]

    def load_names(self) -> list[str]:
        return list(self._documents)

    def up(self, name: str) -> None:
        """Starts a service, once what it depends on is as it should be."""
        document = self._documents[name]
        for needed, how in document.get("depends_on", {}).items():
            if needed not in self.services:
                self.up(needed)
            self._await(needed, how["condition"])
        self.start(name)

    def start(self, name: str) -> None:
        """Starts it now."""
        document = self._documents[name]
        standin = STANDINS.get(document["image"].partition(":")[0])
        root = self._place / ("standins" if standin else "image")
        command = standin.entry(document.get("command", [])) if standin else document["command"]
        environment = {
            **(standin.environment if standin else read_image_environment(self._source)),
            **{key: str(value) for key, value in document.get("environment", {}).items()},
            "HOSTNAME": document.get("hostname", name),
        }
        user = standin.user if standin else _PRODUCT
        inside = enter_as(user, environment, command, "/" if standin else "/var/lib/backlogctl")
        script = "\n".join([*self._mounts(name, document, root, standin), f"exec {inside}"])
        log = (self._state / f"{name}.log").open("ab")
        process = subprocess.Popen(
            ["ip", "netns", "exec", name, "unshare", "--mount", "--uts", "sh", "-ec", script],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        self.services[name] = Service(name, document, process, environment, user)
        say(f"started {name}")

    def stop(self, name: str, within: float = 60.0) -> int:
        """SIGTERM, as `docker compose stop`; its exit code."""
        process = self.services[name].process
        process.terminate()
        return process.wait(within)

    def execute(self, name: str, *command: str, user: str = "", timeout: float = 300) -> Any:
        """`docker compose exec`."""
        service = self.services[name]
        inside = enter_as(user or service.user, service.environment, command, "/", chroot="")
        target = f"--target={service.process.pid}"
        return subprocess.run(
            [
                "nsenter",
                target,
                "--net",
                "--mount",
                "--uts",
                "--root",
                "sh",
                "-c",
                f"cd /; {inside}",
            ],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def wait_healthy(self, name: str, limit: float = 240.0) -> None:
        """Until its health check, or its end, is good."""
        service = self.services[name]
        if service.state != "starting":
            return
        began = time.monotonic()
        test = service.document.get("healthcheck", {}).get("test")
        while time.monotonic() < began + limit:
            code = service.process.poll()
            if code is not None:
                service.state = "ended well" if code == 0 else f"ended with {code}"
                break
            if test and self.execute(name, *test[1:], timeout=90).returncode == 0:
                service.state = "healthy"
                break
            time.sleep(1)
        service.seconds = time.monotonic() - began
        say(f"{name}: {service.state} after {service.seconds:.0f} s")

    def _await(self, name: str, condition: str) -> None:
        self.wait_healthy(name)
        wanted = "ended well" if condition == "service_completed_successfully" else "healthy"
        if self.services[name].state != wanted:
            log = (self._state / f"{name}.log").read_text(errors="replace")
            raise SystemExit(f"{name} is {self.services[name].state}:\n{log[-3000:]}")

    def _make_network(self) -> None:
        run("ip link set lo up; ip link add br0 type bridge; ip link set br0 up")
        run("mount --make-rprivate /; mkdir -p /run/netns; mount -t tmpfs tmpfs /run/netns")
        lines = ["127.0.0.1 localhost"]
        for number, name in enumerate(self._documents, start=2):
            address = f"{_SUBNET}.{number}"
            lines.append(f"{address} {name}")
            run(
                f"ip netns add {name}; ip link add v{number} type veth peer name eth0 netns {name};"
                f"ip link set v{number} master br0; ip link set v{number} up;"
                f"ip -n {name} addr add {address}/24 dev eth0;"
                f"ip -n {name} link set eth0 up; ip -n {name} link set lo up"
            )
        run(f"ip addr add {_SUBNET}.1/24 dev br0")
        (self._state / "hosts").write_text("\n".join(lines) + "\n")

    def _mounts(self, name: str, document: dict[str, Any], root: Path, standin: Any) -> list[str]:
        own = self._state / "roots" / name
        for part in ("upper", "work", "root"):
            (own / part).mkdir(parents=True, exist_ok=True)
        into = own / "root"
        lines = [
            f"hostname {document.get('hostname', name)}",
            f"layers=lowerdir={root},upperdir={own}/upper,workdir={own}/work",
            f"mount -t overlay overlay -o $layers {into}",
            f"mount -t proc proc {into}/proc; mount --rbind /dev {into}/dev",
            f"mount -t tmpfs -o mode=1777 tmpfs {into}/tmp",  # noqa: S108
            f"rm -f {into}/etc/resolv.conf; cp {self._state}/hosts {into}/etc/hosts",
            f"mkdir -p {into}/run/secrets; mount -t tmpfs tmpfs {into}/run/secrets",
        ]
        for secret in document.get("secrets", []):
            file = self._source / "docker" / self._compose["secrets"][secret]["file"]
            lines.append(f"cp -p {file} {into}/run/secrets/{secret}")
        for text in document.get("volumes", []):
            origin, target, *mode = text.split(":")
            if origin.startswith("."):
                found = (self._source / "docker" / origin).resolve()
                made = (
                    "mkdir -p" if found.is_dir() else f"mkdir -p {into}{Path(target).parent}; touch"
                )
                lines.append(f"{made} {into}{target}; mount --bind {found} {into}{target}")
                if mode == ["ro"]:
                    lines.append(f"mount -o remount,bind,ro {into}{target}")
                continue
            volume = self._state / "volumes" / origin
            if not volume.exists():
                # A new volume has the owner of what it covers.
                volume.mkdir()
                covered = root / target[1:]
                if covered.exists():
                    status = covered.stat()
                    os.chown(volume, status.st_uid, status.st_gid)
                    volume.chmod(status.st_mode & 0o7777)
            lines.append(f"mkdir -p {into}{target}; mount --bind {volume} {into}{target}")
        if standin and standin.mounts:
            lines += [
                f"mkdir -p {into}{target}; mount --bind {origin} {into}{target}"
                for origin, target in standin.mounts().items()
            ]
        lines.append(f"cd {into}")
        return lines


def enter_as(
    user: str,
    environment: dict[str, str],
    command: Any,
    directory: str,
    chroot: str = "chroot . ",
) -> str:
    """The shell words that run a command as somebody without any capability."""
    words = [f"{key}={value}" for key, value in environment.items()]
    reuid, _, regid = user.partition(":")
    drop = [f"--reuid={reuid}", f"--regid={regid or reuid}", "--clear-groups", "--no-new-privs"]
    drop += ["--bounding-set=-all", "--inh-caps=-all"]
    inner = ["sh", "-c", f"cd {directory} && exec {shlex.join(command)}"]
    return chroot + shlex.join(["env", "-i", *words, "setpriv", *drop, *inner])


def read_image_environment(source: Path) -> dict[str, str]:
    """ENV of the Dockerfile's last stage."""
    environment = dict(Stage(Path()).environment)
    for name, rest in read_instructions((source / "docker/Dockerfile").read_text()):
        if name == "FROM":
            environment = dict(Stage(Path()).environment)
        if name == "ENV":
            for word in shlex.split(rest):
                key, _, value = word.partition("=")
                environment[key] = value.replace("$PATH", environment["PATH"])
    return {**environment, "HOME": "/var/lib/backlogctl"}


def run(script: str) -> None:
    """A few commands that must succeed."""
    subprocess.run(["sh", "-ec", script], check=True, stdout=sys.stderr)


def say(text: str) -> None:
    """One line, with the time."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
