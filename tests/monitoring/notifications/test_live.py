"""The real watcher on a real broker tells hooks that a group stops and comes back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from backlog.errors import BacklogError
from backlog.ledger import open_ledger
from monitoring.notifications.notifier import Notifier, Pauses
from monitoring.watcher import watch_streams
from sandbox.embedded import EmbeddedKafka
from tests.kafka_tools import StreamStub, commit, properties_of, publish, wait_until
from tests.monitoring.notifications.hook_server import HookServer, Reply, serve_hook
from tests.monitoring.notifications.makers import make_hook

MakeTopic = Callable[..., str]

INTERVAL, WINDOW = timedelta(seconds=0.5), timedelta(seconds=3)
HANGS = 600.0


def find_changes(server: HookServer) -> list[tuple[str | None, str, bool]]:
    return [(one["before"], one["verdict"], one["resolved"]) for one in server.documents]


@contextmanager
def watch(
    directory: Path, properties: dict[str, str], stream: StreamStub, notifier: Notifier
) -> Iterator[list[float]]:
    """Yields when each look was made."""
    cluster = SimpleNamespace(client_properties=lambda: properties)
    config: Any = SimpleNamespace(clusters={"main": cluster}, streams={stream.name: stream})
    looks: list[float] = []
    stop = threading.Event()

    def work() -> None:
        with open_ledger(f"sqlite:///{directory}/ledger.db") as ledger:
            watch_streams(
                config,
                ledger,
                INTERVAL,
                stop,
                lambda _: looks.append(time.monotonic()),
                window=WINDOW,
                on_status=notifier.note,
                on_error=notifier.note_failure,
            )

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield looks
    finally:
        stop.set()
        thread.join(60)


def test_a_group_that_stops_and_comes_back_is_told_while_other_hooks_hang_and_fail(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str, tmp_path: Path
) -> None:
    properties, name = properties_of(kafka.bootstrap), topic(partitions=1)
    publish(properties, name, {0: 10})
    commit(properties, group, name, {0: 10})
    said: list[str] = []

    def say(what: str, error: BacklogError | None) -> None:
        said.append(f"{what}: {'works again' if error is None else error.message}")

    with (
        serve_hook() as good,
        serve_hook(lambda _: Reply(hangs=HANGS)) as hanging,
        serve_hook(lambda _: Reply(500, body="")) as failing,
    ):
        hooks = {
            "good": make_hook(webhook=good.url, **{"from": "stop"}),
            "hanging": make_hook(webhook=hanging.url, timeout="90s"),
            "failing": make_hook(webhook=failing.url),
        }
        notifier = Notifier(hooks, say, pauses=Pauses((0.05,)))
        with notifier, watch(tmp_path, properties, StreamStub(name, group), notifier) as looks:
            wait_until(lambda: len(looks) >= 3)
            publish(properties, name, {0: 90})
            wait_until(lambda: find_changes(good), what="it is told that nobody reads")
            assert find_changes(good) == [("ok", "stop", False)]
            commit(properties, group, name, {0: 100})
            wait_until(lambda: len(good.requests) >= 2, what="it is told that all is read")
            seen = len(looks)
            wait_until(lambda: len(looks) >= seen + 5)
    assert find_changes(good) == [("ok", "stop", False), ("stop", "ok", True)]
    stopped, recovered = good.documents
    assert stopped["sentence"].startswith("orders/0: 90 behind, nobody is in the group")
    assert stopped["next_commands"] == ["backlogctl status orders"]
    assert (stopped["lag"], recovered["lag"]) == (90, 0)
    assert len(hanging.requests) == 1
    assert "hook failing: it answered 500" in said
    assert len([text for text in said if text.startswith("hook failing")]) == 1
    slowest = max(later - earlier for earlier, later in pairwise(looks))
    assert slowest < 20, "no look waits for a hook"
