"""The template with one piece changed, for the tests of the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import strategies as st

from backlogctl.config import Config, render_template
from backlogctl.errors import ConfigurationError

BASE = Path("/srv/backlog")
ENV = {"SHOP_PASSWORD": "s3cr3t-of-shop"}
SECRETS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=8).map(
    lambda text: f"S3~{text}~"
)


def load(old: str = "", new: str = "", env: dict[str, str] | None = None) -> Config:
    """The template with one piece of its text replaced."""
    text = render_template()
    assert old in text
    return Config.from_text(text.replace(old, new, 1), BASE, ENV if env is None else env)


def refuse(old: str, new: str, env: dict[str, str] | None = None) -> str:
    """What is said of the template with one piece of its text replaced."""
    with pytest.raises(ConfigurationError) as caught:
        load(old, new, env)
    return str(caught.value)


def with_stream(line: str) -> tuple[str, str]:
    return "    source:\n", f"    {line}\n    source:\n"


def with_property(line: str) -> tuple[str, str]:
    servers = "    bootstrap.servers: localhost:9092\n"
    return servers, f"{servers}    {line}\n"


def with_section(text: str) -> tuple[str, str]:
    return "staging:\n", f"{text}\nstaging:\n"
