"""Masks secrets in plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def mask_values(mask: Callable[[str], str], value: Any) -> Any:
    """The value with every text in it masked, at any depth."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, Mapping):
        return {name: mask_values(mask, item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [mask_values(mask, item) for item in value]
    return value
