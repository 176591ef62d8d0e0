"""Where code reaches the points at which a test may crash it, or do something beside it."""

from __future__ import annotations

from types import ModuleType


def list_reaching(package: ModuleType) -> list[ModuleType]:
    """Its modules that reach points of a protocol."""
    modules = (item for item in vars(package).values() if isinstance(item, ModuleType))
    return [module for module in modules if hasattr(module, "reach")]
