"""Relative paths of a configuration are relative to its file.

The file's folder is the context of the validation; a configuration made in code has none.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationInfo

DEFAULT_LEDGER = "sqlite:///backlog.db"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_SQLITE_FILE = re.compile(r"(sqlite(?:\+\w+)?:///)(?!/|:memory:|file:)([^?]+)(.*)", re.DOTALL)


def anchor_path(value: Any, info: ValidationInfo) -> Any:
    """A path from the file's folder; what is no text, and all of a configuration made in code, is
    left as it is."""
    if info.context is None or not isinstance(value, str | Path):
        return value
    return info.context / Path(value).expanduser()


def _anchor_place(value: Any, info: ValidationInfo) -> Any:
    is_path = isinstance(value, str) and value and not _URL.match(value)
    return str(anchor_path(value, info)) if is_path else value


def _anchor_url(value: Any, info: ValidationInfo) -> Any:
    file = _SQLITE_FILE.fullmatch(value) if isinstance(value, str) else None
    return f"{file[1]}{anchor_path(file[2], info)}{file[3]}" if file else value


LocalPath = Annotated[Path, BeforeValidator(anchor_path)]
PlaceText = BeforeValidator(_anchor_place)
DatabaseUrl = BeforeValidator(_anchor_url)
