#!/usr/bin/env python3
"""Stands in for `docker`: the command lines of the launcher `compose`, and no others.

Its containers are processes of this machine. What it is told, it keeps in the folder of
DOCKER_STAND_IN: calls.jsonl has each command line, with what it was given by stdin.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

Object = dict[str, Any]
HERE = Path(os.environ["DOCKER_STAND_IN"])
_RUN = 'trap : TERM; "$@"; echo $? >"$0.exit"'


def main(words: list[str]) -> None:
    given = "" if sys.stdin.isatty() else sys.stdin.read()
    with (HERE / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps({"words": words, "given": given}) + "\n")
    if (HERE / "away").exists():
        sys.exit("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.")
    with (HERE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run(words, given)


def run(words: list[str], given: str) -> None:
    match words:
        case ["compose", "--file", "-", "--project-name", name, "up", *rest]:
            up(json.loads(given.replace("$$", "$")), name, rest)
        case ["compose", "--file", file, "config", "--format", "json", service]:
            document = read_base(file)
            known(document, service)
            print(json.dumps(document).replace("$", "$$"))
        case ["compose", "--file", file, "up", *rest]:
            document = read_base(file)
            up(document, document["name"], rest)
        case ["compose", "--file", file, "stop", service]:
            stop(living(read_base(file)["name"], service))
        case ["compose", "--project-name", name, "down", "--volumes"]:
            stop(living(name))
            for path in HERE.glob(f"{name}.*.json"):
                path.unlink()
        case ["compose", "--file", file, "ps", *rest]:
            ps(read_base(file)["name"], rest)
        case ["compose", "--project-name", name, "ps", *rest]:
            ps(name, rest)
        case ["compose", "--file", file, "logs", *rest]:
            logs(read_base(file)["name"], rest)
        case ["compose", "--project-name", name, "logs", *rest]:
            logs(name, rest)
        case _:
            refuse(words)


def refuse(words: list[str]) -> NoReturn:
    sys.exit(f"unknown: docker {' '.join(words)}")


def read_base(file: str) -> Object:
    """As Compose resolves it: names of what belongs to the project."""
    document: Object = json.loads(Path(file).read_text())
    for kind in ("networks", "volumes"):
        for key in document.get(kind) or {}:
            document[kind][key] = {"name": f"{document['name']}_{key}"}
    return document


def known(document: Object, service: str) -> None:
    if service not in document["services"]:
        sys.exit(f"no such service: {service}")


def up(document: Object, name: str, rest: list[str]) -> None:
    match rest:
        case ["--detach", "--no-deps", "--no-recreate", "--scale", scale, service]:
            known(document, service)
        case _:
            refuse(rest)
    count = int(scale.removeprefix(f"{service}="))
    for kind in ("networks", "volumes"):
        for one in (document.get(kind) or {}).values():
            if "-recovery-" in name and not one.get("external"):
                sys.exit(f"{kind} {one['name']} would be made anew")
    alive = living(name, service)
    stop(alive[count:])
    taken = {record["index"] for record in alive[:count]}
    for path in HERE.glob(f"{name}.{service}.*.json"):
        if int(path.name.split(".")[-2]) > count:
            path.unlink()
    for index in range(1, count + 1):
        if len(taken) < count and index not in taken:
            start(document["services"][service], name, service, index)
            taken.add(index)


def start(definition: Object, name: str, service: str, index: int) -> None:
    stem = f"{name}.{service}.{index}"
    (HERE / f"{stem}.exit").unlink(missing_ok=True)
    with (HERE / f"{stem}.log").open("w") as log:
        process = subprocess.Popen(
            ["sh", "-c", _RUN, str(HERE / stem), *definition["command"]],
            env={"PATH": os.environ["PATH"], **definition["environment"]},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    record = {"index": index, "pid": process.pid, "name": f"{name}-{service}-{index}"}
    (HERE / f"{stem}.json").write_text(json.dumps(record))


def records(name: str, service: str = "*") -> list[Object]:
    paths = HERE.glob(f"{name}.{service}.*.json")
    return sorted((json.loads(path.read_text()) for path in paths), key=lambda one: one["index"])


def lives(record: Object) -> bool:
    try:
        state = Path(f"/proc/{record['pid']}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def living(name: str, service: str = "*") -> list[Object]:
    return [record for record in records(name, service) if lives(record)]


def stop(found: list[Object]) -> None:
    for record in found:
        os.killpg(record["pid"], signal.SIGTERM)
    while any(lives(record) for record in found):
        time.sleep(0.01)


def logs(name: str, rest: list[str]) -> None:
    match rest:
        case ["--no-color", "--no-log-prefix", "--tail", "10", "--index", index, service]:
            print((HERE / f"{name}.{service}.{index}.log").read_text())
        case _:
            refuse(rest)


def ps(name: str, rest: list[str]) -> None:
    match rest:
        case ["--format", "json", service]:
            found = living(name, service)
        case ["--all", "--format", "json", service]:
            found = records(name, service)
        case _:
            refuse(rest)
    told = []
    for record in found:
        ended = HERE / f"{name}.{service}.{record['index']}.exit"
        code = int(ended.read_text()) if ended.exists() else 0
        state = "running" if lives(record) else "exited"
        told.append({"Name": record["name"], "State": state, "ExitCode": code, "Labels": ""})
    if (HERE / "array").exists():  # as Compose printed before 2.21
        print(json.dumps(told))
    for one in told if not (HERE / "array").exists() else ():
        print(json.dumps(one))


if __name__ == "__main__":
    main(sys.argv[1:])
