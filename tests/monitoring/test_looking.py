"""What a look does where the brokers tell less than it asks."""

from __future__ import annotations

from typing import Any

import pytest

from backlog.clock import Deadline
from backlog.errors import ClusterUnreachable, KafkaFailure
from backlog.kafka import peek
from monitoring import looking
from monitoring.status import UNLIMITED
from monitoring.unseen import Unseen


def test_without_the_right_to_read_settings_the_rest_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> None:
        raise KafkaFailure("not authorized to read its settings", subject="topic orders")

    monkeypatch.setattr(looking, "describe_topic", refuse)
    unseen: list[Unseen] = []
    found = looking._read_settings(None, "orders", Deadline(1.0), unseen)  # type: ignore[arg-type]
    assert found is None
    assert looking._find_retention(found) is UNLIMITED
    assert [one.what for one in unseen] == ["retention"]

    def leave(*_: Any) -> None:
        raise ClusterUnreachable("no broker answered", subject="cluster", retryable=True)

    monkeypatch.setattr(looking, "describe_topic", leave)
    with pytest.raises(ClusterUnreachable):
        looking._read_settings(None, "orders", Deadline(1.0), unseen)  # type: ignore[arg-type]


def test_a_timestamp_that_is_none_is_not_known() -> None:
    assert peek._to_time(1_700_000_000_000) is not None
    assert peek._to_time(1_700_000_000_000_000) is None, "microseconds"
    assert peek._to_time(2**63 - 1) is None
