"""How a stream's consumers are launched, and how its backlog is drained."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from backlog.config.base import Duration, Section, Text
from backlog.config.sections import Positive

Arguments = Annotated[tuple[Text, ...], Field(min_length=1)]


class Ramp(Section):
    """How fast more consumers are started, so that what they write to survives."""

    step: Positive = Field(default=10, description="Consumers started at a time.")
    every: Duration = Field(
        default=timedelta(seconds=1), description="Time between two steps of the ramp."
    )


class Consumers(Section):
    """The stream's consumers, as the tool starts and stops them."""

    launcher: Literal["process", "command", "manual"] = Field(
        description="`process`: local processes; `command`: your own commands; `manual`: people."
    )
    replicas: Positive = Field(default=1, description="How many run in normal times.")
    command: Arguments | None = Field(
        default=None,
        description="`process`: program and arguments of one consumer. `{topic}`, `{group}`, "
        "`{bootstrap_servers}`, `{index}`, `{role}`, `{stream}` and `{recovery}` are filled in.",
    )
    directory: Path | None = Field(
        default=None,
        description="Working directory of the commands; without it that of the configuration file.",
    )
    environment: dict[str, str] = Field(
        default_factory=dict,
        description="More environment variables of the commands; secrets by reference. "
        "`BACKLOG_TOPIC`, `BACKLOG_GROUP` and `BACKLOG_BOOTSTRAP_SERVERS` are always set.",
    )
    scale: Arguments | None = Field(
        default=None,
        description="`command`: makes `{replicas}` consumers run; the words of `command` are "
        "filled in.",
    )
    stop: Arguments | None = Field(default=None, description="`command`: ends all of them.")
    status: Arguments | None = Field(
        default=None,
        description="`command`: prints how many run, as the first number of its output.",
    )
    stop_within: Duration = Field(
        default=timedelta(seconds=60),
        description="How long consumers may take to end, and the group to become empty.",
    )
    ramp: Ramp = Field(default_factory=Ramp, description="How fast more consumers are started.")
    max_consumers: Positive | None = Field(
        default=None,
        description="Never more than this at once, whatever the factor; without it no cap.",
    )

    @model_validator(mode="after")
    def _check_commands(self) -> Consumers:
        wanted = {"process": ("command",), "command": ("scale", "stop"), "manual": ()}
        known = ("command", "scale", "stop", "status")
        allowed = {
            "process": ("command",),
            "command": ("scale", "stop", "status"),
            "manual": (),
        }
        for name in wanted[self.launcher]:
            if getattr(self, name) is None:
                raise ValueError(f"`launcher: {self.launcher}` needs `{name}`")
        for name in known:
            if getattr(self, name) is not None and name not in allowed[self.launcher]:
                raise ValueError(f"`{name}` does not go with `launcher: {self.launcher}`")
        return self


class Expand(Section):
    """How an emergency expansion drains the backlog."""

    factor: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=10, description="Temporary partitions per partition, and consumers per replica."
    )
    order: Literal["key", "round_robin"] = Field(
        default="key",
        description="`key`: messages of a key stay in order, in one temporary partition. "
        "`round_robin`: spread evenly, no order.",
    )
    max_lag_at_cutover: Annotated[int, Field(ge=0)] = Field(
        default=1000,
        description="The relay ends when the source's lag is at most this; the original consumers "
        "read the rest.",
    )
