"""Outboxes: databases whose committed messages `backlogctl outbox run` sends, and `watch` sees."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field, field_validator

from backlog.config.base import Duration, Label, Section, Text


class Outbox(Section):
    """The table `backlog_outbox` in the database of the same name under `sources`."""

    cluster: Label = Field(description="A name under `clusters`, where its messages go.")
    partitioner: Literal["murmur2", "crc32"] = Field(
        default="murmur2",
        description="How keys choose a partition: as the topics' other producers do.",
    )
    late: Duration = Field(
        default=timedelta(minutes=10),
        description="A message that is not sent so long after it was added is late, for the page "
        "and the doctor.",
    )
    keep: Duration | None = Field(
        default=None,
        description="`outbox run` deletes what was sent so long ago; without it nothing. Where a "
        "stream is rebuilt from it, longer than the retention of the topic.",
    )
    listen: Text | None = Field(
        default=None,
        description="Address and port of /metrics of `outbox run`; port 0 takes a free one.",
    )
    lease: Duration = Field(
        default=timedelta(seconds=60),
        description="How long the messages of a sender that died wait for another one.",
    )

    @field_validator("lease")
    @classmethod
    def _check_lease(cls, value: timedelta) -> timedelta:
        if value < timedelta(seconds=2):
            raise ValueError("must be 2 s or more")
        return value
