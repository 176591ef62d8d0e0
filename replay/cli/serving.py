"""/metrics of a service that a verb runs, on an address of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from backlog.errors import ConfigurationError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


@contextmanager
def serve_metrics(registry: CollectorRegistry, address: str, subject: str) -> Iterator[str]:
    """Serves until the block ends; gives the address with its port.

    Args:
        subject: the option or key that the address is of, for the error.

    Raises:
        ConfigurationError: it cannot be listened on.
    """
    from prometheus_client import start_http_server

    host, _, port = address.rpartition(":")
    try:
        server, thread = start_http_server(int(port), host.strip("[]"), registry)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"it cannot be listened on: {error}",
            subject=f"{subject} {address}",
            hint="HOST:PORT; port 0 takes a free one",
        ) from None
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
