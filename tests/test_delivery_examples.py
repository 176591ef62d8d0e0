"""The examples of `delivery`: the commands of their pages, as they are written there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from backlogctl.sandbox.secured import free_port

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
_ADDRESS = "127.0.0.1:PORT"


def read_commands(readme: Path) -> list[str]:
    """What its reader types. `broker start` prints the address that stands for `PORT`."""
    blocks = _BLOCK.findall(readme.read_text())
    lines = [line[2:] for block in blocks for line in block.splitlines() if line[:2] == "$ "]
    assert sum(_ADDRESS in line for line in lines) == 1
    return lines


def run_example(tmp_path: Path, name: str, **changes: str) -> list[str]:
    """Runs them in one shell, in a copy of the folder; returns what they print, line by line."""
    shutil.copytree(
        ROOT / "examples",
        tmp_path / "examples",
        ignore=shutil.ignore_patterns(".backlog-broker", "*.db*", "__pycache__"),
    )
    (tmp_path / ".venv").symlink_to(sys.prefix)
    place = tmp_path / "examples" / name
    script = "\n".join(read_commands(place / "README.md"))
    script = script.replace(_ADDRESS, "$(grep -o '127[0-9.:]*' .backlog-broker/broker.json)")
    for before, after in changes.items():
        assert before in script
        script = script.replace(before, after)
    try:
        # Its last command stops the broker, and would hide what failed before.
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=place,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )
        assert "Traceback" not in done.stdout, done.stdout
        return done.stdout.splitlines()
    finally:
        stop = [sys.executable, "-m", "backlogctl.replay.cli", "broker", "stop", "--dir"]
        subprocess.run(
            [*stop, place / ".backlog-broker"], cwd=ROOT, check=False, capture_output=True
        )


def test_orders_in_the_table_are_messages_in_the_topic_though_the_service_was_killed(
    tmp_path: Path,
) -> None:
    lines = run_example(tmp_path, "03-order-service-with-outbox")
    assert any("Killed" in line for line in lines)
    table, topic, difference = lines[-4:-1]
    number = int(table.split()[0].replace(",", ""))
    assert table == f"{number:,} orders in the table"
    assert topic.startswith(f"{number:,} orders in the topic")
    # Two hundred more, and four of five of them.
    assert number > 100
    assert difference == "0 missing, 0 that were rolled back"


def test_a_payment_is_told_once_it_is_made_though_the_service_died(tmp_path: Path) -> None:
    example = "04-payment-with-look-back"
    lines = run_example(tmp_path, example, **{"127.0.0.1:8791": f"127.0.0.1:{free_port()}"})
    told = [line for line in lines if line.endswith("is in the topic")]
    assert told == [f"payment {number} is in the topic" for number in (1, 2)]
    assert {line for line in lines if line.startswith("asked")} == {
        "asked about payment 2: committed",
        "asked about payment 3: rolled_back",
    }
    assert "ended" in lines  # what look-back says at SIGTERM


def test_each_order_is_handled_once_though_it_is_read_again(tmp_path: Path) -> None:
    lines = run_example(tmp_path, "05-handle-once-consumer")
    (again,) = re.findall(r"0 handled now, (\d+) read again and left out", lines[-3])
    assert int(again) > 200
    assert lines[-2] == f"{again} demands for {again} orders"


@pytest.mark.parametrize("name", ["03-order-service-with-outbox", "05-handle-once-consumer"])
def test_no_more_is_needed_than_the_page_says(name: str) -> None:
    """An application takes the room in with a few lines: these are all that name it."""
    (program,) = (ROOT / "examples" / name).glob("[ho]*_*.py")
    taken = re.findall(
        r"^.*\b(?:outbox|Outbox|marks|Marks)\b.*$", program.read_text(), re.MULTILINE
    )
    assert 0 < len(taken) < 10
