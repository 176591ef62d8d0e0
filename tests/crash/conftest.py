"""Worlds of expansions and a MariaDB for the crash tests."""

from __future__ import annotations

from tests.delivery.conftest import mariadb, mariadb_url
from tests.replay.expand.conftest import make_world, world

__all__ = ["make_world", "mariadb", "mariadb_url", "world"]
