"""`backlogctl` as stories want it: short waits, small files, or held where somebody stops it.

`python -m tests.kit.shortened run ...` is `backlogctl` with the changes that SHORTENED names.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from backlogctl.clock import Deadline
from backlogctl.fanout import segments, speed
from backlogctl.fanout.quiet import await_quiet
from backlogctl.fanout.relay import guard
from backlogctl.fanout.temporary_topic import delete_temporary_topic
from backlogctl.kafka.admin import list_offsets, read_topic_id
from backlogctl.kafka.errors import TopicMissing
from backlogctl.ledger import TemporaryTopic
from backlogctl.replay.consumers import fleet
from backlogctl.replay.engine.brakes import check_brakes
from backlogctl.replay.engine.kind import RunContext
from backlogctl.replay.kinds.expand import canary, closing
from backlogctl.values import OffsetRange
from backlogctl_delivery import crashpoints
from tests.kit.kafka import read_all

if TYPE_CHECKING:
    from backlogctl.replay.kinds.offload.context import OffloadContext
    from backlogctl.spark_backfill.archive.job import ArchiveJob

MODULE = "tests.kit.shortened"
SHORTENED = "SHORTENED"  # in the environment: a key of WAYS
WORLD = "EXPAND_WORLD"  # in the environment of every process of a world: its directory
STOP_INSTEAD = "STOP_INSTEAD"  # where it is set, a crash point stops the process
HELD_AT = "HELD_AT"  # where `held` waits:
WAVE, VERIFICATION = "wave", "verification"
HELD_SECONDS = 240.0
QUIET = 0.5
MEASURED = 1.0
FIRST_COMMIT = 240.0
SESSION_MS = 2_000
OFFSETS = 60.0  # a file of an archive; so that it takes several batches
_TICK = 0.05

Patch = Callable[[Any, str, Any], None]


def shorten(patch: Patch, *, keep_topic: bool = True) -> None:
    """An expansion: short waits, and the temporary topic is read before it goes.

    Args:
        patch: sets an attribute: `setattr`, or pytest's.
    """
    patch(fleet, "await_quiet", partial(await_quiet, quiet=QUIET))
    patch(speed, "ENOUGH_SECONDS", MEASURED)
    patch(canary, "NOTHING_SECONDS", FIRST_COMMIT)  # consumers are started on a busy machine
    settings = {
        **guard._SETTINGS,
        "session.timeout.ms": SESSION_MS,
        "max.poll.interval.ms": SESSION_MS,
        "heartbeat.interval.ms": 300,
    }
    patch(guard, "_SETTINGS", settings)
    if keep_topic:
        patch(closing, "delete_temporary_topic", _keep_and_delete)


def read_properties(directory: Path) -> Mapping[str, str]:
    """Client properties of a world."""
    return dict(json.loads((directory / "properties.json").read_text()))


def _keep_and_delete(ledger: Any, connection: Any, *, recovery_id: str, **others: Any) -> None:
    """Leaves `temporary.json` for the oracle: (key, sequence, partition) of each message."""
    known = ledger.temporary_topics.get(recovery_id)
    directory = Path(os.environ[WORLD])
    properties = read_properties(directory)
    if known is not None and known.deleted_at is None and _is_there(properties, known):
        numbers = range(known.partitions)
        ends = [
            list_offsets(properties, known.name, numbers, "latest", level)
            for level in ("read_committed", "read_uncommitted")
        ]
        found = [
            ((message.key() or b"").decode(), int(message.value() or 0), message.partition())
            for message in read_all(properties, known.name, numbers)
        ]
        document = {"messages": found, "open": ends[0] != ends[1]}
        (directory / "temporary.json").write_text(json.dumps(document))
    delete_temporary_topic(ledger, connection, recovery_id=recovery_id, **others)


def _is_there(properties: Mapping[str, str], known: TemporaryTopic) -> bool:
    try:
        return read_topic_id(properties, known.name)[0] == known.topic_id
    except TopicMissing:
        return False


def shorten_offload(patch: Patch) -> None:
    """An offload: an archive of many small files."""
    from backlogctl.replay.kinds.offload import context, planning
    from backlogctl.spark_backfill.archive import writing

    shorten(patch)
    patch(planning, "READINGS_APART", 0.1)
    patch(context, "FREED_SECONDS", 8.0)
    patch(writing, "split_ranges", _cut_small)
    patch(writing, "_PIECES_PER_CORE", 2)


def _cut_small(
    ranges: Iterable[OffsetRange], bytes_per_message: float | None, file_bytes: int
) -> list[OffsetRange]:
    from backlogctl.spark_backfill.archive.job import split_ranges

    del bytes_per_message, file_bytes
    return split_ranges(ranges, 1.0, int(OFFSETS))


def shorten_crash(patch: Patch) -> None:
    """An offload that is killed: pieces of some dozens of messages."""
    from backlogctl.replay.kinds.offload import context, planning, steps
    from backlogctl.spark_backfill.archive import writing

    make_job = steps.make_job

    def make_small(context: OffloadContext) -> ArchiveJob:
        return replace(make_job(context), file_bytes=14_000, bytes_per_message=100.0)

    shorten(patch)
    patch(planning, "READINGS_APART", 0.1)
    # How much is freed is judged elsewhere.
    patch(context, "FREED_SECONDS", 3.0)
    patch(segments, "ROLLED_SECONDS", 4.0)
    patch(steps, "make_job", make_small)
    patch(writing, "_PIECES_PER_CORE", 1)
    if STOP_INSTEAD in os.environ:
        patch(crashpoints, "signal", SimpleNamespace(SIGKILL=signal.SIGSTOP))


def hold(patch: Patch) -> None:
    """A rebuild waits for whoever wants to stop it: after its first wave, or at the end of the
    verification. A test that asks for an end is then never too late, however long it takes."""
    from backlogctl.replay.injection import steps
    from backlogctl.replay.injection.context import InjectionContext

    before: list[int] = []
    record = InjectionContext.record

    def wait_and_check(context: RunContext[Any]) -> None:
        """Lets the first wave of this process go, and then none."""
        limit = Deadline(HELD_SECONDS)
        while not (limit.expired or context.interrupts.asked):
            now = context.workspace.ledger.recoveries.get(context.recovery.id)
            before.append(now.injected)
            if now.requested or now.injected == before[0]:
                break
            time.sleep(_TICK)
        check_brakes(context)

    def wait_and_record(context: RunContext[Any], action: str, **detail: Any) -> None:
        if action == "read back":
            time.sleep(HELD_SECONDS)
        record(context, action, **detail)

    if os.environ[HELD_AT] == WAVE:
        patch(steps, "check_brakes", wait_and_check)
    else:
        patch(InjectionContext, "record", wait_and_record)


def _shorten_group(patch: Patch) -> None:
    """A crash point kills the process group."""
    shorten_crash(patch)
    os.environ[crashpoints.GROUP] = str(os.getpgrp())


WAYS: Mapping[str, Callable[[Patch], None]] = {
    "expand": shorten,
    "offload": shorten_offload,
    "crash": _shorten_group,
    "held": hold,
}

if __name__ == "__main__":
    WAYS[os.environ[SHORTENED]](setattr)
    from backlogctl.replay.cli import main

    sys.exit(main())
