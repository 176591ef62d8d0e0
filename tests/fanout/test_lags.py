"""What is left in both topics."""

from __future__ import annotations

import pytest

from backlogctl.clock import Deadline
from backlogctl.errors import KafkaFailure
from backlogctl.fanout.unread import Lags, find_unread, read_lags
from backlogctl.kafka.clients import make_admin
from tests.conftest import MakeTopic
from tests.fanout.relay.conftest import KEPT
from tests.fanout.relay.doing import fill, open_transaction
from tests.kafka_tools import set_offsets_raw


def test_totals() -> None:
    assert Lags({0: 1, 1: 2}, {}).source_total == 3
    assert Lags({}, {0: 4}).temporary_total == 4


def test_lags_are_counted_to_the_last_stable_offset_and_never_negative(
    properties: dict[str, str], topic: MakeTopic, group: str
) -> None:
    admin = make_admin(properties)
    source, temporary = topic(2, KEPT), topic(3, KEPT)  # the messages are years old
    recovery = f"{group}.recovery"

    def read(last_offsets: dict[int, int] | None = None) -> Lags:
        return read_lags(
            admin,
            source=source,
            group=group,
            partitions=2,
            temporary=temporary,
            recovery_group=recovery,
            temporary_partitions=3,
            last_offsets=last_offsets,
        )

    assert read() == Lags({0: 0, 1: 0}, {0: 0, 1: 0, 2: 0})  # fault 27
    fill(properties, source, {0: 10, 1: 5})
    stranger = open_transaction(properties, f"stranger-{source}", source, 0)
    set_offsets_raw(properties, group, source, {0: 4})
    fill(properties, temporary, {0: 6, 1: 1}, transaction=temporary)
    set_offsets_raw(properties, recovery, temporary, {0: 2, 1: 2, 2: 0})
    assert read() == Lags({0: 6, 1: 5}, {0: 5, 1: 0, 2: 0})
    # The marker behind the last message is no lag.
    assert read({0: 5, 1: 0}).temporary == {0: 4, 1: 0, 2: 0}
    stranger.abort_transaction(90)


def test_fault_74_an_end_below_what_is_known_is_a_failed_reading(
    properties: dict[str, str], topic: MakeTopic, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a broker answers that has not recovered its ends: nothing would seem to be left."""
    admin = make_admin(properties)
    source, temporary = topic(1, KEPT), topic(2, KEPT)
    recovery = f"{group}.recovery"

    def read(seconds: float, **known: dict[int, int]) -> Lags:
        return read_lags(
            admin,
            source=source,
            group=group,
            partitions=1,
            temporary=temporary,
            recovery_group=recovery,
            temporary_partitions=2,
            limit=Deadline(seconds),
            **known,
        )

    fill(properties, source, {0: 10})
    fill(properties, temporary, {0: 5})
    set_offsets_raw(properties, recovery, temporary, {0: 7})
    with pytest.raises(KafkaFailure, match="ends at 5, below the committed offset 7") as caught:
        read(10)
    assert caught.value.retryable
    with pytest.raises(KafkaFailure, match="ends at 5, below the committed offset 7"):
        find_unread(admin, properties, temporary, recovery, 2, Deadline(5))
    fill(properties, temporary, {0: 4})  # it is there after all
    assert read(30).temporary == {0: 2, 1: 0}
    # What the relay says it has written counts as well.
    with pytest.raises(KafkaFailure, match="ends at 0, below the known written offset 3"):
        read(5, last_offsets={1: 2})
    # It stays: told as what it is, and not asked for ever.
    monkeypatch.setattr("backlogctl.kafka.groups.TRUNCATED_SECONDS", 0.5)
    with pytest.raises(KafkaFailure, match="messages were lost") as caught:
        read(30, last_offsets={1: 2})
    assert not caught.value.retryable
