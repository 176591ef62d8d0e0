"""Worlds of expansions for the crash tests."""

from __future__ import annotations

from tests.replay.expand.conftest import make_world, world

__all__ = ["make_world", "world"]
