"""Ports on this machine."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from pathlib import Path

from backlog.errors import EmbeddedError

HOST = "127.0.0.1"


def free_port() -> int:
    """A port that nobody listens on, outside the range that outgoing connections are given.

    Within that range a client that keeps trying to reach a stopped broker ends up connected to
    itself, and the broker cannot come back on its port.
    """
    low, high = _ephemeral_range()
    for port in _candidates(low, high):
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise EmbeddedError("no free port was found", subject=HOST)


def _candidates(low: int, high: int) -> Iterator[int]:
    outside = [*range(15000, low), *range(high + 1, 65536)] or list(range(low, high + 1))
    # Not the shared generator: tests seed it, and two processes would try the same ports.
    chance = random.SystemRandom()
    for _ in range(200):
        yield chance.choice(outside)


def _ephemeral_range() -> tuple[int, int]:
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except OSError:
        return 49152, 65535
    return int(low), int(high)


def listens(port: int) -> bool:
    """True when somebody accepts connections on this port."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((HOST, port)) == 0
