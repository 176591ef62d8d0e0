"""Which quota a client is granted: as brokers keep to it, and what is known of who it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka.record.default_records import DefaultRecordBatchBuilder

from backlogctl.clock import Deadline
from backlogctl.errors import Refused
from backlogctl.kafka import quotas
from backlogctl.kafka.admin import create_topic
from backlogctl.kafka.quotas import name_user, read_quota
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.values import Quota
from tests.kit.kafka import properties_of, wait_until
from tests.kit.transactions import ask_to_write, open_raw, set_quotas

RATE = "producer_byte_rate"
# Brokers take the bytes of the last ten to eleven seconds.
LEAST, MOST = 10.0, 11.5
SIZE = 400_000
MARK: dict[str, str | None] = {"client-id": "mark"}
PLAIN = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "ada"}


def list_levels(client: str, user: str = "ANONYMOUS") -> list[dict[str, str | None]]:
    """The most specific first, by Kafka's documentation."""
    users: list[str | None] = [user, None]
    clients: list[str | None] = [client, None]
    levels: list[dict[str, str | None]] = []
    for one in users:
        levels += [{"user": one, "client-id": each} for each in clients]
        levels.append({"user": one})
    return [*levels, *({"client-id": each} for each in clients)]


def measure_rate(properties: dict[str, str], topic: str) -> tuple[float, float]:
    """Between which rates the one lies to which a broker brings a client that wrote SIZE bytes."""
    batch = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 2 * SIZE)
    batch.append(0, timestamp=1_700_000_000_000, key=None, value=b"x" * SIZE, headers=[])
    with open_raw(properties) as raw:
        waits = ask_to_write(raw, topic, batch).throttle_time_ms / 1000
    return SIZE / (waits + MOST), 1.01 * SIZE / (waits + LEAST)


def await_change(properties: dict[str, str], mark: float) -> None:
    """Until all that was changed holds: brokers take changes one by one, and this is the last."""
    set_quotas(properties, MARK, {RATE: mark})
    key = frozenset(MARK.items())
    with open_raw(properties) as raw:
        wait_until(
            lambda: raw.run(lambda: quotas._ask(raw), Deadline(30)).get(key) == mark,
            what="the change is told",
        )


def read_rate(properties: dict[str, str]) -> float | None:
    return read_quota(properties, Deadline(30)).rate


def test_the_quota_that_holds_is_the_one_that_brokers_keep_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All levels are set, and taken away one by one."""
    rates = [float(round(1000 * 1.5**level)) for level in range(8)]
    rates[5] = 100.0  # far from the others: see below
    with EmbeddedKafka.start(tmp_path / "kafka") as kafka:
        plain = properties_of(kafka.bootstrap)
        create_topic(plain, "orders", partitions=1)
        for level, expected in enumerate(rates):
            mine = {**plain, "client.id": f"client-{level}"}
            levels = list_levels(mine["client.id"])
            for whom, rate in zip(levels[level:], rates[level:], strict=True):
                set_quotas(plain, whom, {RATE: rate, "consumer_byte_rate": 1e9})
            await_change(plain, level + 1)
            assert read_rate(mine) == expected
            least, most = measure_rate(mine, "orders")
            # All clients of a user together are asked here, and one has written at level 2.
            assert least <= expected <= most * (2 if level == 5 else 1), level
            for whom in levels[: level + 1]:
                set_quotas(plain, whom, {RATE: None})  # what it may read is another quota
        await_change(plain, 9)
        mine = {**plain, "client.id": "any"}
        assert read_quota(mine, Deadline(30)) == Quota(None, "user ANONYMOUS with client.id any")

        # Where the user is not known: of those that may be its the smallest.
        monkeypatch.setattr(quotas, "name_user", lambda _: None)
        set_quotas(plain, {"client-id": None}, {RATE: 900.0})
        await_change(plain, 10)
        assert read_quota(mine, Deadline(30)) == Quota(900.0, "client.id any")
        set_quotas(plain, {"user": "ada"}, {RATE: 300.0})
        set_quotas(plain, {"user": "bob"}, {RATE: 2000.0})
        await_change(plain, 11)
        found = read_quota(mine, Deadline(30))
        assert (found.rate, found.who.endswith("is unknown")) == (300.0, True)


@pytest.mark.parametrize(
    ("properties", "user"),
    [
        ({}, "ANONYMOUS"),
        ({"security.protocol": "SSL"}, "ANONYMOUS"),
        ({"security.protocol": "ssl", "ssl.keystore.location": "/a"}, None),
        ({"security.protocol": "SSL", "ssl.certificate.pem": "a"}, None),
        (PLAIN, "ada"),
        ({**PLAIN, "sasl.mechanism": "SCRAM-SHA-512", "ssl.certificate.pem": "a"}, "ada"),
        ({**PLAIN, "sasl.mechanism": "OAUTHBEARER"}, None),
        ({**PLAIN, "sasl.mechanism": "GSSAPI"}, None),
        ({"security.protocol": "SASL_SSL"}, None),
    ],
)
def test_who_is_known(properties: dict[str, str], user: str | None) -> None:
    assert name_user(properties) == user


def test_who_cannot_ask_keeps_no_share() -> None:
    login = {**PLAIN, "sasl.mechanism": "GSSAPI", "bootstrap.servers": "a:1"}
    with pytest.raises(Refused, match="quotas cannot be asked for with sasl"):
        read_quota(login, Deadline(1))


def test_a_quota_is_told_with_the_share() -> None:
    quota = Quota(3e6, "user ada with client.id backlogctl")
    assert (quota.take(0.5), quota.take(None)) == (1.5e6, None)
    assert quota.describe(0.5) == (
        "at most 1.5 MB/s: 50 % of the quota of user ada with client.id backlogctl, 3.0 MB/s "
        "(`limits.quota_share`)"
    )
    assert (
        Quota(None, "user ada")
        .describe(0.5)
        .startswith("as fast as it goes: brokers name no quota")
    )
