"""PostgreSQL connections that fail soon when the server has vanished.

Without these settings a statement to a machine that has vanished waits for the kernel: for a
quarter of an hour when it was being sent, for two hours when the answer was awaited.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import URL

# libpq's connection parameters (PostgreSQL manual, 32.1.2): seconds, seconds, number, milliseconds.
LIVENESS: Mapping[str, str] = {
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}


def add_liveness(url: URL) -> URL:
    """The URL with a limit of about 30 s for a silent peer, where it does not say otherwise."""
    return url.update_query_dict(
        {name: value for name, value in LIVENESS.items() if name not in url.query}
    )
