"""Requests that a broker refuses only for now."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backlogctl.clock import Deadline
from backlogctl.kafka.group_types import list_groups
from backlogctl.kafka.raw_client import RawClient, translate_properties


@pytest.fixture
def client(properties: dict[str, str]) -> Iterator[RawClient]:
    settings, _ = translate_properties(properties)
    assert settings is not None
    with RawClient(settings, Deadline(15.0)) as client:
        yield client


def test_what_is_refused_for_now_is_asked_again(client: RawClient) -> None:
    """As by a broker that has just started: its coordinator is loading."""
    from kafka.errors import CoordinatorLoadInProgressError, NotCoordinatorError

    refusals: list[Exception] = [CoordinatorLoadInProgressError(), NotCoordinatorError()]

    async def ask() -> int:
        if refusals:
            raise refusals.pop()
        return len(await list_groups(client))

    assert client.run(ask, Deadline(15.0)) >= 0
    assert not refusals


def test_refused_to_the_end_of_the_limit(client: RawClient) -> None:
    from kafka.errors import CoordinatorLoadInProgressError

    asked = 0

    async def ask() -> None:
        nonlocal asked
        asked += 1
        raise CoordinatorLoadInProgressError

    with pytest.raises(CoordinatorLoadInProgressError):
        client.run(ask, Deadline(1.0))
    assert 2 <= asked <= 6


def test_what_is_refused_for_good_is_asked_once(client: RawClient) -> None:
    from kafka.errors import GroupAuthorizationFailedError

    asked = 0

    async def ask() -> None:
        nonlocal asked
        asked += 1
        raise GroupAuthorizationFailedError

    with pytest.raises(GroupAuthorizationFailedError):
        client.run(ask, Deadline(5.0))
    assert asked == 1
