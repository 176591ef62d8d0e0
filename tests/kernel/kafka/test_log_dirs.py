"""The brokers' disks: read, or unknown with a reason, never a crash and never a secret."""

from __future__ import annotations

import logging
import random
import shutil
import threading
import time
from typing import Any

import pytest

from backlogctl.clock import Deadline
from backlogctl.kafka.log_dirs import _to_log_dirs, read_log_dirs
from backlogctl.kafka.raw_client import _silenced, translate_properties
from tests.conftest import MakeTopic
from tests.kafka_tools import properties_of, publish, wait_until

SASL = {
    "bootstrap.servers": "a:1, b:2",
    "security.protocol": "sasl_ssl",
    "sasl.mechanism": "scram-sha-512",
    "sasl.username": "ada",
    "sasl.password": "hunter2-of-the-broker",
    "ssl.ca.location": "/ca.pem",
    "ssl.certificate.location": "/cert.pem",
    "ssl.key.location": "/key.pem",
    "ssl.key.password": "hunter3",
}


def test_disks_of_a_real_broker(properties: dict[str, str], topic: MakeTopic) -> None:
    name = topic(partitions=2)
    publish(properties, name, {0: 200}, value=random.randbytes(1000))
    level = logging.getLogger("kafka").level
    seen = read_log_dirs(properties, name, Deadline(90.0))
    assert seen.reason == ""
    assert seen.brokers is not None
    (broker,) = seen.brokers
    disk = shutil.disk_usage("/")
    assert broker.total_bytes is not None
    assert broker.usable_bytes is not None
    assert 0 < broker.usable_bytes <= broker.total_bytes
    assert broker.total_bytes <= 2 * disk.total
    assert set(broker.partitions) == {0, 1}
    assert 1000 < (seen.partition_bytes(0) or 0) < 300_000
    assert (seen.partition_bytes(1), seen.partition_bytes(7)) == (0, None)
    assert logging.getLogger("kafka").level == level


def test_fault_28_disks_that_nobody_tells_are_unknown_within_the_limit(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    seen = read_log_dirs(properties_of("127.0.0.1:1"), "orders", Deadline(2.0))
    assert time.monotonic() - started < 14  # without its own limit 15
    assert seen.brokers is None
    assert seen.reason
    assert [record for record in caplog.records if record.name.startswith("kafka")] == []
    assert capfd.readouterr().err == ""
    wait_until(lambda: not any("kafka-io" in one.name for one in threading.enumerate()))


def test_the_log_is_quiet_until_the_last_of_several_has_asked() -> None:
    log = logging.getLogger("kafka")
    level, first, second = log.level, _silenced(), _silenced()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not log.isEnabledFor(logging.CRITICAL)
    second.__exit__(None, None, None)
    assert log.level == level


def test_properties_are_translated() -> None:
    assert translate_properties(SASL) == (
        {
            "bootstrap_servers": ["a:1", "b:2"],
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_plain_username": "ada",
            "sasl_plain_password": "hunter2-of-the-broker",
            "ssl_check_hostname": True,
            "ssl_cafile": "/ca.pem",
            "ssl_certfile": "/cert.pem",
            "ssl_keyfile": "/key.pem",
            "ssl_password": "hunter3",
        },
        "",
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"sasl.mechanism": "OAUTHBEARER"},
        {"sasl.mechanism": "GSSAPI"},
        {"sasl.mechanism": ""},
        {"ssl.key.pem": "-----BEGIN hunter4"},
        {"enable.ssl.certificate.verification": "false"},
    ],
)
def test_properties_that_cannot_be_translated_are_unknown(changes: dict[str, str]) -> None:
    seen = read_log_dirs({**SASL, **changes}, "orders")
    assert seen.brokers is None
    assert "cannot be asked for" in seen.reason
    assert "hunter" not in seen.reason


def test_fault_59_no_secret_is_in_the_reason() -> None:
    for changes in ({}, {"security.protocol": "SASL_PLAINTEXT"}, {"security.protocol": "hunter3"}):
        seen = read_log_dirs(
            {**SASL, "bootstrap.servers": "127.0.0.1:1", **changes}, "orders", Deadline(1.5)
        )
        assert seen.brokers is None
        assert "hunter2" not in seen.reason


def directory(total: int, usable: int, size: int = 0, error: int = 0) -> dict[str, Any]:
    part = {"partition_index": 0, "partition_size": size, "offset_lag": 0, "is_future_key": False}
    return {
        "error_code": error,
        "log_dir": "/data",
        "topics": [{"name": "orders", "partitions": [part]}, {"name": "x", "partitions": []}],
        "total_bytes": total,
        "usable_bytes": usable,
    }


def test_two_directories_on_one_disk_count_once() -> None:
    dirs = [directory(100 << 30, 50 << 30, 7), directory(100 << 30, (50 << 30) - 5)]
    seen = _to_log_dirs([{"broker": 1, "log_dirs": [*dirs, directory(7, 5 << 20)]}], "orders")
    assert seen.brokers is not None
    assert seen.brokers[0].usable_bytes == (50 << 30) + (5 << 20)
    assert seen.brokers[0].partitions == {0: 7}


def test_old_broker_and_denied_access_are_unknown() -> None:
    old = _to_log_dirs([{"broker": 1, "log_dirs": [directory(-1, -1, 9)]}], "orders")
    assert old.brokers is not None
    assert (old.brokers[0].usable_bytes, old.partition_bytes(0)) == (None, 9)
    denied = _to_log_dirs([{"broker": 1, "log_dirs": []}], "orders")
    assert denied.brokers is None
    assert "Describe" in denied.reason
