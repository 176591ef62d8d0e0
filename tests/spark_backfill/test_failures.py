"""What errors of Spark and its workers become."""

from __future__ import annotations

import pytest

from backlogctl.errors import KafkaFailure, SourceError
from backlogctl.spark_backfill.failures import list_secrets, mask_text, translating
from backlogctl.spark_backfill.injection.waves import LostWorker

PROPERTIES = {
    "bootstrap.servers": "story:9092",
    "client.id": "s",
    "sasl.username": "story",
    "sasl.password": "hunter2",
    "ssl.key.pem": "-----BEGIN",
}


def test_fault_59_secrets_are_masked_and_nothing_else_is() -> None:
    secrets = list_secrets(PROPERTIES)
    assert sorted(secrets) == ["-----BEGIN", "hunter2"]
    text = "could not reach story:9092 as story with hunter2"
    assert mask_text(text, secrets) == "could not reach story:9092 as story with ***"


def test_an_error_whose_cause_is_unknown_is_as_retryable_as_its_kind() -> None:
    with pytest.raises(LostWorker) as lost, translating("write", subject="x", kind=LostWorker):
        raise OSError("the worker is gone")
    assert lost.value.retryable
    with pytest.raises(SourceError) as source, translating("read", subject="x"):
        raise OSError("no such file")
    assert not source.value.retryable
    with pytest.raises(KafkaFailure) as kafka, translating("read", subject="x", kind=KafkaFailure):
        raise OSError("no")
    assert not kafka.value.retryable
