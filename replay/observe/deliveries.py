"""Opens outboxes and look-back to look at them: what is not there is not made by looking."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from backlogctl.config import Config
from backlogctl.errors import BacklogError, ConfigurationError

if TYPE_CHECKING:
    from backlogctl_delivery.lookback.tables import LookBackDatabase
    from backlogctl_delivery.outbox.database import OutboxDatabase

Part = TypeVar("Part")


def open_outbox(config: Config, name: str) -> OutboxDatabase:
    """The database of an outbox of the configuration.

    Raises:
        ConfigurationError: it is in none that can hold one, its driver is not installed, or there
            is no such file.
    """
    from backlogctl_delivery.outbox.database import OutboxDatabase

    url = config.sources[name].reveal_url()
    _require_file(url, f"backlogctl outbox create --outbox {name}")
    return OutboxDatabase(url)


@contextmanager
def opened_outbox(config: Config, name: str) -> Iterator[OutboxDatabase]:
    """The same, closed in the end."""
    database = open_outbox(config, name)
    try:
        yield database
    finally:
        database.close()


def open_look_back(config: Config) -> LookBackDatabase:
    """The database of look-back.

    Raises:
        ConfigurationError: the URL is wrong, or there is no such file.
    """
    from backlogctl_delivery.lookback.tables import LookBackDatabase

    assert config.look_back is not None
    url = config.look_back.reveal_url()
    _require_file(url, "backlogctl lookback run")
    return LookBackDatabase(url)


@contextmanager
def opened_look_back(config: Config) -> Iterator[LookBackDatabase]:
    """The same, closed in the end."""
    database = open_look_back(config)
    try:
        yield database
    finally:
        database.close()


def within(seconds: float, subject: str, read: Callable[[], Part]) -> Part:
    """What it reads of a database, which may hang: then its thread is left behind.

    Raises:
        BacklogError: there was no answer in time, or what `read` raises.
    """
    answers: queue.SimpleQueue[Part | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(read())
        except Exception as error:  # noqa: BLE001 - raised by who waits
            answers.put(error)

    threading.Thread(target=ask, name="backlog-looking", daemon=True).start()
    try:
        found = answers.get(timeout=seconds)
    except queue.Empty:
        raise BacklogError(
            f"its database has not answered for {seconds:g} s",
            subject=subject,
            hint="does something hold a lock on its table?",
            retryable=True,
        ) from None
    if isinstance(found, Exception):
        raise found
    return found


def _require_file(url: str, making: str) -> None:
    """SQLite makes a file that is not there."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parts = make_url(url)
    except (ArgumentError, ValueError):
        return  # whoever opens it refuses it
    if parts.get_backend_name() == "sqlite" and not Path(parts.database or "").is_file():
        raise ConfigurationError(f"there is no file {parts.database}", hint=f"`{making}` makes it")
