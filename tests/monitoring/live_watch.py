"""Looks at streams of a real broker, and a watch of them on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from backlogctl.clock import Deadline
from backlogctl.ledger import Ledger
from backlogctl.monitoring.verdict.status import GroupStatus
from backlogctl.monitoring.watch.look import look_at_stream
from backlogctl.monitoring.watch.loop import watch_streams
from tests.kit.kafka import StreamStub

WATCH = SimpleNamespace(window=timedelta(minutes=10), horizon=timedelta(hours=24))


def look(ledger: Ledger, properties: dict[str, str], stream: StreamStub) -> GroupStatus:
    return look_at_stream(ledger, stream, properties, WATCH, Deadline(60.0)).status


def make_config(
    properties: Mapping[str, str], *streams: StreamStub, commit_log: bool = True
) -> Any:
    """What a watch needs of a configuration; all streams are of one cluster."""
    cluster = SimpleNamespace(client_properties=lambda: properties)
    return SimpleNamespace(
        clusters={"main": cluster},
        streams={one.name: one for one in streams},
        watch=SimpleNamespace(commit_log=commit_log),
    )


@contextmanager
def run_watch(config: Any, ledger: Ledger, seconds: float, **settings: Any) -> Iterator[None]:
    """`watch_streams` goes on meanwhile."""
    stop = threading.Event()
    thread = threading.Thread(
        target=watch_streams,
        args=(config, ledger, timedelta(seconds=seconds), stop),
        kwargs=settings,
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(90)
        assert not thread.is_alive()
