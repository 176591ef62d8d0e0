"""A shell."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.kit.java import write_script


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with Kafka's tools and `backlogctl`, as they are on a PATH."""
    folder = tmp_path_factory.mktemp("shell")
    for name, tool in (
        ("kafka-configs.sh", "ConfigCommand"),
        ("kafka-topics.sh", "TopicCommand"),
        ("kafka-consumer-groups.sh", "consumer.group.ConsumerGroupCommand"),
    ):
        write_script(folder / name, tool)
    ours = folder / "backlogctl"
    where = f"PYTHONPATH={Path(__file__).parents[3]}"
    ours.write_text(f'#!/bin/sh\n{where} exec {sys.executable} -m backlogctl.replay.cli "$@"\n')
    ours.chmod(0o755)
    return folder
