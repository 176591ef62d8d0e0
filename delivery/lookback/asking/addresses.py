"""Which addresses may be asked: public ones, and those that the configuration lists (fault 58).

A name is resolved once, every address it gives is looked at, and the connection goes to one of
these: a name that answers otherwise the next moment changes nothing.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

from backlog.errors import Refused

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NAT64 = IPv6Network("64:ff9b::/96")


def read_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """The networks of the configuration."""
    return tuple(ip_network(text) for text in texts)


async def resolve_host(host: str, port: int, networks: Sequence[Network]) -> list[str]:
    """The addresses of a host, all of which may be asked.

    Raises:
        OSError: there is no such name.
        Refused: one of its addresses may not be asked.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    for text in addresses:
        # An address with a zone, `fe80::1%eth0`, is link-local.
        if "%" in text or not may_ask(ip_address(text), networks):
            raise Refused(f"its name resolves to {text}, which is not public and not listed")
    return addresses


def may_ask(address: Address, networks: Sequence[Network]) -> bool:
    """Whether an address is public or listed; what it stands for counts as well."""
    inner = _unwrap(address)
    if any(address in network or inner in network for network in networks):
        return True
    return all(one.is_global and not one.is_multicast for one in (address, inner))


def _unwrap(address: Address) -> Address:
    """The IPv4 address that an IPv6 address is another way to write; else itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address
