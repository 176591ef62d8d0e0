"""Hashes of values."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def hash_value(value: Any) -> str:
    """SHA-256 of a JSON value's canonical text (sorted keys, no spaces)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
