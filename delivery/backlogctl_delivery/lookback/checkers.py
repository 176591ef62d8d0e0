"""Which addresses may be asked: public ones, and those that the configuration lists (fault 58).

A name is resolved once, every address it gives is looked at, and the connection goes to one of
these: a name that answers otherwise the next moment changes nothing.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Protocol

from backlogctl_delivery.errors import Refused
from backlogctl_delivery.lookback.messages import Outcome

MOST_BYTES = 64 * 1024  # of an answer, which needs thirty


@dataclass(frozen=True, slots=True)
class Question:
    """Which business transaction is meant."""

    biz_type: str
    biz_id: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a question; `reason` never holds what the service sent."""

    outcome: Outcome
    reason: str = ""


class Checker(Protocol):
    """Asks one service. Raises nothing but what ends the program: all else is an answer."""

    async def ask(self, question: Question) -> Answer:
        """Asks once, within the service's time limit."""

    async def close(self) -> None:
        """Gives connections back."""


def read_status(status: object) -> Answer:
    """The answer to a `status` as services send it."""
    known = {one.value: one for one in (Outcome.COMMITTED, Outcome.ROLLED_BACK, Outcome.UNKNOWN)}
    if isinstance(status, str) and status in known:
        return Answer(known[status])
    return Answer(Outcome.FAILED, f"its status is none of {', '.join(known)}")


Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")


def read_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    return tuple(ip_network(text) for text in texts)


class Resolver:
    """Finds the addresses of one host, all of which may be asked.

    A look-up cannot be given up. So it has threads of its own: with a name server that hangs, the
    questions to this host wait, and nobody else's.

    Args:
        threads: as many questions are under way at once.
    """

    def __init__(self, host: str, port: int, networks: Sequence[str], threads: int) -> None:
        self._host, self._port = host, port
        self._networks = read_networks(networks)
        self._threads = ThreadPoolExecutor(threads, "lookback-names")

    async def resolve(self) -> list[str]:
        """Looks the name up.

        Raises:
            OSError: there is no such name.
            Refused: one of its addresses may not be asked.
        """
        loop = asyncio.get_running_loop()
        entries = await loop.run_in_executor(self._threads, self._look_up)
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
        for text in addresses:
            # An address with a zone, `fe80::1%eth0`, is link-local.
            if "%" in text or not may_ask(ip_address(text), self._networks):
                raise Refused(f"its name resolves to {text}, which is not public and not listed")
        return addresses

    def close(self) -> None:
        """Waits for no look-up."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _look_up(self) -> list[tuple[Any, ...]]:
        try:
            return [*socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)]
        except UnicodeError as error:  # such as a label that is empty or too long
            raise OSError("this is no name of a host") from error


def may_ask(address: Address, networks: Sequence[Network]) -> bool:
    """Whether an address is public or listed; what it stands for counts as well."""
    inner = _unwrap(address)
    if any(address in network or inner in network for network in networks):
        return True
    return all(map(_is_public, (address, inner)))


def _is_public(address: Address) -> bool:
    # Outside of it Python calls global what is reserved, or another way to write IPv4.
    if isinstance(address, IPv6Address) and address not in _UNICAST and address not in _NAT64:
        return False
    return address.is_global and not address.is_multicast


def _unwrap(address: Address) -> Address:
    """The IPv4 address that an IPv6 address is another way to write; else itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address
