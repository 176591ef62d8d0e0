"""What the tests change in the product: short waits, and the temporary topic is read before it goes.

`python -m tests.replay.expand.shortened run ...` is `backlogctl` with these changes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from backlogctl.fanout.quiet import await_quiet
from backlogctl.fanout.relay import guard
from backlogctl.fanout.temporary_topic import delete_temporary_topic
from backlogctl.kafka.admin import list_offsets, read_topic_id
from backlogctl.kafka.errors import TopicMissing
from backlogctl.ledger import TemporaryTopic
from backlogctl.replay.consumers import fleet
from backlogctl.replay.kinds.expand import canary, steps
from tests.kit.kafka import read_all

WORLD = "EXPAND_WORLD"  # in the environment of every process of a world: its directory
QUIET = 0.5
MEASURED = 1.0
SESSION_MS = 2_000

Patch = Callable[[Any, str, Any], None]


def shorten(patch: Patch, *, keep_topic: bool = True) -> None:
    """Args: `patch` sets an attribute: `setattr`, or pytest's."""
    patch(fleet, "await_quiet", partial(await_quiet, quiet=QUIET))
    patch(canary, "ENOUGH_SECONDS", MEASURED)
    settings = {
        **guard._SETTINGS,
        "session.timeout.ms": SESSION_MS,
        "max.poll.interval.ms": SESSION_MS,
        "heartbeat.interval.ms": 300,
    }
    patch(guard, "_SETTINGS", settings)
    if keep_topic:
        patch(steps, "delete_temporary_topic", _keep_and_delete)


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


if __name__ == "__main__":
    shorten(setattr)
    from backlogctl.replay.cli import main

    sys.exit(main())
