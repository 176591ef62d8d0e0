"""A relay process, `python -m backlogctl.fanout.relay.worker ENGINE`: a thread for each partition.

The task comes as the first line on stdin (it holds secrets, so it is no argument); a second line
asks to stop between two transactions. When stdin ends, the runner is gone: the process ends at
once, and its open transactions are aborted by the next relay. What it commits, and how each
partition ends, goes to stdout, one JSON document a line.
"""

from __future__ import annotations

import base64
import gc
import json
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Literal

from backlogctl.errors import (
    BacklogError,
    HangingTransaction,
    KafkaFailure,
    ProducerFenced,
    Refused,
    UsageError,
)
from backlogctl.fanout.relay.interface import (
    RECORD,
    WIRE,
    GuardLost,
    Position,
    PositionExpired,
    RelayEngine,
    RelayTask,
    SourceRange,
    UnexplainedRefusal,
)
from backlogctl.kafka.errors import TopicMissing
from backlogctl.kafka.throttling import Throttling
from backlogctl.wire import explain_absence
from backlogctl_delivery.kafka import EncryptionRefused, LoginRefused

_ERRORS: dict[str, type[BacklogError]] = {
    kind.code: kind
    for kind in (
        *(GuardLost, PositionExpired, UnexplainedRefusal, ProducerFenced, HangingTransaction),
        *(Refused, TopicMissing, KafkaFailure, LoginRefused, EncryptionRefused),
    )
}
_GONE = 70  # exit code: the runner went away


def make_relay_engine(name: str) -> RelayEngine:
    """The engine of that name: `record`, or `wire`."""
    # What it imports takes long, and who starts the workers needs none of it.
    if name == WIRE:
        from backlogctl.fanout.relay.wire import WireEngine

        return WireEngine()
    from backlogctl.fanout.relay.records import RecordEngine

    return RecordEngine()


def choose_relay_engine(
    wanted: str, properties: Mapping[str, str]
) -> tuple[Literal["wire", "record"], str]:
    """The engine for `expand.engine`, and why.

    Raises:
        UsageError: `wire` is wanted, and this cluster or this installation does not allow it.
    """
    if wanted == RECORD:
        return "record", "as `expand.engine` says"
    why = explain_absence(properties)
    if not why:
        return "wire", "whole record batches"
    if wanted == WIRE:
        raise UsageError(
            f"the wire engine cannot relay here: {why}",
            subject="expand.engine",
            hint="set it to `auto`, or pip install 'backlogctl[wire]'",
        )
    return "record", f"the wire engine cannot relay here: {why}"


def write_task(task: RelayTask, parts: list[SourceRange]) -> str:
    """The line that a worker reads first."""
    document = {**asdict(task), "group_metadata": base64.b64encode(task.group_metadata).decode()}
    return json.dumps({"task": document, "parts": [asdict(p) for p in parts]})


def read_task(line: str) -> tuple[RelayTask, list[SourceRange]]:
    document = json.loads(line)
    task = document["task"]
    task["group_metadata"] = base64.b64decode(task["group_metadata"])
    parts = [SourceRange(**part) for part in document["parts"]]
    return RelayTask(**task), parts


def read_position(document: dict[str, Any]) -> Position:
    """A position as it came over the pipe."""
    numbers = {
        name: {int(place): count for place, count in document[name].items()}
        for name in ("counts", "last_offsets")
    }
    throttling = Throttling(**document["throttling"])
    return Position(**{**document, **numbers, "throttling": throttling})


def read_error(document: dict[str, Any]) -> BacklogError:
    """An error as it came over the pipe; one of an unknown kind is a KafkaFailure."""
    kind = _ERRORS.get(document["code"], KafkaFailure)
    return kind(
        document["message"],
        subject=document["subject"],
        hint=document["hint"],
        retryable=bool(document["retryable"]),
    )


class _Worker:
    """The partitions of one process."""

    def __init__(self, engine: RelayEngine, task: RelayTask, parts: list[SourceRange]) -> None:
        self._engine = engine
        self._task = replace(task, side_by_side=len(parts))
        self._parts = parts
        self._stop = threading.Event()
        self._writing = threading.Lock()

    def run(self) -> None:
        """Runs every partition to its end."""
        threading.Thread(target=self._listen, daemon=True).start()
        threads = [threading.Thread(target=self._relay, args=(part,)) for part in self._parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _listen(self) -> None:
        # However often it is asked to stop: the end of stdin ends the process.
        while sys.stdin.readline():
            self._stop.set()
        os._exit(_GONE)

    def _relay(self, part: SourceRange) -> None:
        try:
            found = self._engine.relay(self._task, part, self._note, self._stop.is_set)
            self._write({"done": asdict(found)})
        except BacklogError as error:
            self._write({"failed": error.to_json(), "partition": part.partition})
        except Exception as error:  # noqa: BLE001 - the other partitions go on; the runner gets it
            document = KafkaFailure(f"{type(error).__name__}: {error}", subject=self._task.source)
            self._write({"failed": document.to_json(), "partition": part.partition})

    def _note(self, position: Position) -> None:
        self._write({"position": asdict(position)})

    def _write(self, document: dict[str, Any]) -> None:
        line = json.dumps(document, separators=(",", ":"))
        with self._writing:
            try:
                sys.stdout.write(line + "\n")
                sys.stdout.flush()
            except BrokenPipeError:
                os._exit(_GONE)


def main() -> None:
    """Reads the task, relays, ends. A spare waits here until it is given one."""
    # Messages hold no cycles; looking for some costs a tenth of a relay's time.
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    engine = make_relay_engine(sys.argv[1])
    line = sys.stdin.readline()
    if not line:
        os._exit(_GONE)
    task, parts = read_task(line)
    _Worker(engine, task, parts).run()
    sys.stdout.flush()
    # The listener still waits on stdin; there is nothing left to close.
    os._exit(0)


if __name__ == "__main__":
    main()
