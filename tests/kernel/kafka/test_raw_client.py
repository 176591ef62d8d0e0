"""Connections that are kept for those who ask of many streams."""

from __future__ import annotations

from typing import Any

import pytest

from backlogctl.clock import Deadline
from backlogctl.kafka.group_types import list_groups
from backlogctl.kafka.leaders import ask_leader_epochs
from backlogctl.kafka.raw_client import (
    RawClient,
    keep_clients,
    lend_client,
    translate_error,
    translate_properties,
)
from backlogctl.sandbox.embedded import EmbeddedKafka


@pytest.fixture
def settings(kafka: EmbeddedKafka) -> dict[str, Any]:
    translated, _ = translate_properties({"bootstrap.servers": kafka.bootstrap})
    assert translated is not None
    return translated


def ask(settings: dict[str, Any]) -> RawClient:
    with lend_client(settings, Deadline(60)) as client:
        client.run(lambda: list_groups(client), Deadline(60))
    return client


def is_open(client: RawClient) -> bool:
    return not client.admin._closed


def test_a_client_is_closed_behind_its_use(settings: dict[str, Any]) -> None:
    first = ask(settings)
    assert not is_open(first)
    assert ask(settings) is not first


def test_many_in_a_row_use_one_and_it_ends_with_them(settings: dict[str, Any]) -> None:
    with keep_clients():
        first = ask(settings)
        with keep_clients():
            assert ask(settings) is first
        assert is_open(first), "it is kept until the outermost ends"
        assert ask({**settings, "client_id": "another"}) is not first
    assert not is_open(first)


def test_two_at_once_have_each_their_own(settings: dict[str, Any]) -> None:
    with keep_clients(), lend_client(settings, Deadline(60)) as one:
        assert ask(settings) is not one


def test_one_that_failed_is_not_used_again(settings: dict[str, Any]) -> None:
    with keep_clients():
        with pytest.raises(ZeroDivisionError), lend_client(settings, Deadline(60)) as failed:
            raise ZeroDivisionError
        assert not is_open(failed)
        assert ask(settings) is not failed


def test_one_that_is_closed_while_it_asks_says_so(settings: dict[str, Any]) -> None:
    """kafka-python ends what is under way: no error to those who catch those of their work."""

    async def be_closed() -> None:
        raise GeneratorExit

    with (
        lend_client(settings, Deadline(60)) as client,
        pytest.raises(ConnectionError, match="was closed"),
    ):
        client.run(be_closed, Deadline(60))


def test_a_broker_that_is_in_no_metadata_may_come_back(settings: dict[str, Any]) -> None:
    """Of two brokers one may name a leader that the other does not know, for a moment."""
    with (
        pytest.raises(Exception) as refused,  # noqa: PT011 - what it is, is translated
        lend_client(settings, Deadline(60)) as client,
    ):
        client.run(lambda: ask_leader_epochs(client, "orders", 77), Deadline(60))
    assert translate_error(refused.value, "look", "a cluster").retryable
