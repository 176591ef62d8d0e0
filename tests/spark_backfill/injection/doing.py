"""What the injection tests do again and again."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaException, Producer

from backlogctl.errors import Paused
from backlogctl.kafka.clients import make_producer
from backlogctl.spark_backfill.injection.brakes import Brake, Brakes, InjectionProgress
from backlogctl.spark_backfill.injection.job import InjectionJob, InjectionResult
from backlogctl.spark_backfill.injection.transactional import TransactionalWriter, WriterSettings
from backlogctl.spark_backfill.injection.waves import inject_with
from tests.crash.runner import LocalChunkRunner
from tests.crash.scenario import judge

WriterKind = Callable[[WriterSettings], TransactionalWriter]


def inject_here(
    job: InjectionJob,
    brakes: Brakes | None = None,
    *,
    writer: WriterKind = TransactionalWriter,
    **callbacks: Any,
) -> InjectionResult:
    """Injects in this process."""
    settings = job.writer_settings()
    runner = LocalChunkRunner(writer(settings))
    return inject_with(runner, job, brakes, **callbacks)


def assert_same_set(job: InjectionJob) -> None:
    """A read_committed reader sees exactly the staged messages, each once."""
    judgement = judge(job)
    assert judgement.is_same_set, judgement


def await_condition(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    """Until it holds."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "the condition did not come true"
        time.sleep(0.02)


@contextmanager
def open_transaction(
    properties: Any, topic: str, partition: int, *, timeout_ms: int = 600_000
) -> Iterator[Producer]:
    """Somebody else's transaction, open on a partition; aborted at the end."""
    name = f"stranger-{topic}-{partition}-{threading.get_ident()}"
    producer = make_producer(
        properties, {"transactional.id": name, "transaction.timeout.ms": timeout_ms}
    )
    producer.init_transactions(90)
    producer.begin_transaction()
    producer.produce(topic, b"{}", b"stranger", partition)
    assert producer.flush(60) == 0
    try:
        yield producer
    finally:
        # The coordinator may have ended it meanwhile.
        with contextlib.suppress(KafkaException):
            producer.abort_transaction(10)


class Stop(Brake):
    """Stops before the n-th wave."""

    def __init__(self, wave: int) -> None:
        self.wave = wave

    def look(self, progress: InjectionProgress) -> str:
        if progress.wave >= self.wave:
            raise Paused("stop")
        return ""
