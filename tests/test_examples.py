"""Every example is a configuration that loads; the first is the demo's."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

from backlogctl.config import load_config
from examples.lost_orders import render_configuration

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("[0-9][0-9]-*"))
ENV = {"SHOP_KAFKA": "127.0.0.1:9092", "PAYMENTS": "127.0.0.1:8791"}


def read(text: str) -> Any:
    return yaml.safe_load(text)


@pytest.mark.parametrize("directory", EXAMPLES, ids=lambda path: path.name)
def test_an_example_loads_and_is_explained(directory: Path) -> None:
    config = load_config(directory / "backlog.yaml", ENV)
    assert config.clusters
    assert (directory / "README.md").read_text().startswith(f"# {directory.name[:2]}: ")


def test_there_are_examples() -> None:
    assert [path.name for path in EXAMPLES] == [
        "01-lost-orders",
        "02-drain-a-backlog",
        "03-order-service-with-outbox",
        "04-payment-with-look-back",
        "05-handle-once-consumer",
    ]


def test_the_first_example_is_the_demos_shop() -> None:
    assert read((EXAMPLES[0] / "backlog.yaml").read_text()) == read(render_configuration())


def test_the_second_example_starts_a_program_that_is_there() -> None:
    consumers = load_config(EXAMPLES[1] / "backlog.yaml", ENV).stream("orders").consumers
    assert consumers is not None
    assert consumers.command is not None
    assert consumers.directory == EXAMPLES[1]
    assert (EXAMPLES[1] / consumers.command[1]).is_file()
    for name in ("../order_consumer.py", "make_backlog.py"):
        assert callable(runpy.run_path(str(EXAMPLES[1] / name))["main"])


def test_what_the_first_example_runs_can_be_imported() -> None:
    assert callable(runpy.run_path(str(EXAMPLES[0] / "lose_orders.py"))["main"])
