"""How messages that exist are put back: dead letters, how often, and rehearsals."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from backlog.config.base import Duration, Section, Text


class DeadLetterHeaders(Section):
    """Headers that say where a dead letter came from, and why, for a framework of your own.

    Those of Spring Kafka (`kafka_dlt-original-*`) and Kafka Connect (`__connect.errors.*`) are
    known.
    """

    topic: Text | None = Field(default=None, description="Holds the original topic, as text.")
    partition: Text | None = Field(
        default=None, description="Holds the original partition, as text or a big-endian integer."
    )
    offset: Text | None = Field(
        default=None, description="Holds the original offset, as text or a big-endian integer."
    )
    error: Text | None = Field(default=None, description="Holds the error, as text.")
    strip: tuple[Text, ...] = Field(
        default=(),
        description="Glob patterns of headers that a retry adds and that are not sent again.",
    )


class Redrive(Section):
    """How messages that exist are put back."""

    dead_letters: DeadLetterHeaders = Field(
        default_factory=DeadLetterHeaders,
        description="Headers of dead letters of a framework of your own.",
    )
    max_replays: Annotated[int, Field(gt=0)] = Field(
        default=3,
        description="A message that was put back so often is not put back again, unless "
        "`--allow replays` says so.",
    )
    rehearsal_keep: Duration = Field(
        default=timedelta(hours=24),
        description="How long a rehearsal's topic keeps its messages; the next plan or run of the "
        "stream deletes the topic after that.",
    )
