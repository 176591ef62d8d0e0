"""The settings of the shop's programs, from their environment."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import psycopg

ALIVE = Path("/tmp/alive")  # noqa: S108 - looked at by the container's health check
_PATIENCE_SECONDS = 60.0


def read_rate(name: str) -> float:
    rate = float(os.environ[name])
    if rate <= 0:
        raise SystemExit(f"{name} must be more than 0, and is {rate:g}")
    return rate


def connect() -> psycopg.Connection:
    """The shop's database; it may come a minute later."""
    password = Path(os.environ["SHOP_PASSWORD_FILE"]).read_text().strip()
    end = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return psycopg.connect(os.environ["SHOP_DATABASE"], password=password)
        except psycopg.OperationalError:
            if time.monotonic() > end:
                raise
            time.sleep(1)


def catch_signals() -> threading.Event:
    """Set by SIGTERM and SIGINT."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop
