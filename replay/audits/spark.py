"""The Spark of an audit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from backlog.config import Stream
from backlog.errors import KafkaFailure
from backlog.ledger.archives import ArchiveRecord
from replay.recovery.workspace import Workspace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def start_spark(
    workspace: Workspace, stream: Stream, audit: str, archives: Iterable[ArchiveRecord] = ()
) -> SparkSession:
    """With what the places of these archives need.

    Raises:
        SparkFailure, EmbeddedError: it did not start.
    """
    from spark_backfill.spark.object_store import needs_s3
    from spark_backfill.spark.session import open_session

    return open_session(
        workspace.config.spark,
        f"backlogctl audit {audit} {stream.name}",
        staging=workspace.config.staging.dir,
        s3=any(needs_s3(one.location) for one in archives),
    )


@contextmanager
def reading_topic(workspace: Workspace, stream: Stream, doing: str) -> Iterator[None]:
    """While Spark reads the topic, and what it is compared with: what it raises is one error.

    Raises:
        KafkaFailure, StagingError.
    """
    from spark_backfill.failures import list_secrets, translating

    with translating(
        doing,
        subject=f"topic {stream.topic}",
        hint="where retention removed messages meanwhile, look again, with a later --since",
        kind=KafkaFailure,
        secrets=list_secrets(workspace.properties(stream)),
    ):
        yield
