"""compose.yaml as compose reads it, its variables filled in, and the Dockerfile's instructions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
FILE = DOCKER / "compose.yaml"
_VARIABLE = re.compile(r"\$\$|\$\{([A-Z_]+)(:-([^}]*))?\}|\$")


def fill_in(text: str) -> str:
    """The text with each variable's default.

    Raises:
        ValueError: a `$` that compose would take for a variable without a default.
    """

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        if match[2] is None:
            raise ValueError(f"no default: {text}")
        return match[3]

    return _VARIABLE.sub(replace, text)


def visit(value: Any) -> Any:
    """The same for a document."""
    if isinstance(value, dict):
        return {key: visit(item) for key, item in value.items()}
    if isinstance(value, list):
        return [visit(item) for item in value]
    return fill_in(value) if isinstance(value, str) else value


def read_compose() -> dict[str, Any]:
    """The file, merged and filled in."""
    found: dict[str, Any] = visit(yaml.safe_load(FILE.read_text()))
    return found


def read_instructions(text: str) -> list[tuple[str, str]]:
    """Each instruction's name and its text; lines that go on are joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(line for line in lines if line.strip()))
    split = (line.strip().partition(" ") for line in joined.splitlines())
    return [(name.upper(), re.sub(r"\s+", " ", rest).strip()) for name, _, rest in split]
