"""A canary for who upgrades kafka-python: we use parts of it that it does not promise."""

from __future__ import annotations

from inspect import getsource
from pathlib import Path

import kafka
from kafka import KafkaAdminClient

_LOOKED_AT = "3.0.12"
_LOOK_AGAIN = f"""
kafka-python is {kafka.__version__}; its private parts were last looked at in {_LOOKED_AT}. Before
you write the new version here, run tests/monitoring/test_groups*.py and look again at:
- backlogctl/kafka/raw_client.py: `_manager` (call_soon, send, cluster.brokers), what `call_soon` gives
  back, `_closed` beside `__new__`, and close() of a client that could not connect
- monitoring/groups/reader.py: `_list_group_offsets_requests`
- backlogctl/kafka/schemas: `ApiMessage` with `load_json`; does it have these requests itself by now?
- backlogctl/kafka/raw_client.py: `_manager` (broker_version_data, cluster.add_coordinator)
"""


def test_the_version_whose_private_parts_were_looked_at() -> None:
    assert kafka.__version__ == _LOOKED_AT, _LOOK_AGAIN


def test_the_private_parts_are_there() -> None:
    made = getsource(KafkaAdminClient.__init__)
    for name in ("_manager", "_closed"):
        assert f"self.{name} = " in made, _LOOK_AGAIN
    closing = getsource(KafkaAdminClient.close)
    assert "_closed" in closing, _LOOK_AGAIN
    assert hasattr(KafkaAdminClient, "_list_group_offsets_requests"), _LOOK_AGAIN


def test_the_files_that_use_them_are_named() -> None:
    """A new one is looked at too."""
    root = Path(__file__).parents[1]
    using = {
        str(path.relative_to(root))
        for folder in (
            "backlogctl",
            "delivery",
            "monitoring",
            "fanout",
            "spark_backfill",
            "replay",
            "sandbox",
        )
        for path in (root / folder).rglob("*.py")
        if "from kafka" in (text := path.read_text())
        and ("_manager" in text or "KafkaAdminClient.__new__" in text)
    }
    assert using
    assert [file for file in sorted(using) if file not in _LOOK_AGAIN] == []
