"""Where the relay places messages, and what that costs at its start."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from backlogctl.fanout.relay.records import Router
from backlogctl.partitioners import PARTITIONERS

KEYS = [b"a", b"order-17", None, b"", "käse".encode(), b"order-17", None, b"x" * 300]


@pytest.mark.parametrize("partitioner", sorted(PARTITIONERS))
def test_keys_go_where_the_partitioner_says_and_the_others_take_turns(partitioner: str) -> None:
    placed = PARTITIONERS[partitioner](pa.array(KEYS, pa.binary()), 30).tolist()
    found = Router("key", partitioner, 30, turn=5).place(KEYS)
    assert [place for place, key in zip(found, KEYS, strict=True) if key is not None] == [
        place for place in placed if place >= 0
    ]
    assert (found[2], found[6]) == (7, 11)


def test_round_robin_goes_on_where_it_was() -> None:
    router = Router("round_robin", "murmur2", 3, turn=4)
    assert router.place([b"a", None]) + router.place([b"a", b"a"]) == [1, 2, 0, 1]
    assert router.place([]) == []


@pytest.mark.parametrize("partitioner", sorted(PARTITIONERS))
def test_placing_does_not_load_pandas(partitioner: str) -> None:
    """It would take a relay's process longer to load than all the rest of it."""
    program = f"""
import sys
from backlogctl.fanout.relay import worker
from backlogctl.fanout.relay.records import Router
Router("key", "{partitioner}", 30, 0).place([b"a", None, b"bc"])
sys.exit("pandas" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
