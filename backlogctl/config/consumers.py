"""How a stream's consumers are launched, and how its backlog is drained."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from string import Formatter
from typing import Annotated, Literal

from pydantic import (
    Field,
    SecretStr,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)

from backlogctl.config.base import Duration, Section, Text, anchor_path, fail_at
from backlogctl.config.sections import Positive

# Placeholders such as `{topic}` in the arguments of a command.

FLEET_PLACEHOLDERS = ("topic", "group", "bootstrap_servers", "role", "stream", "recovery")


def check_placeholders(arguments: Iterable[str], known: Iterable[str]) -> None:
    """Refuses placeholders that nothing fills in.
    Raises ValueError: names the placeholder and the known ones.
    """
    known_names = tuple(known)
    named = ", ".join(f"`{{{name}}}`" for name in known_names)
    for argument in arguments:
        try:
            pieces = list(Formatter().parse(argument))
        except ValueError:
            raise ValueError(
                "has a brace without its partner; a brace of your own is written `{{` or `}}`"
            ) from None
        for _, name, form, conversion in pieces:
            if name is not None and (name not in known_names or form or conversion):
                whole = name + (f"!{conversion}" if conversion else "")
                whole += f":{form}" if form else ""
                raise ValueError(
                    f"`{{{whole}}}` is not a placeholder; known are {named}; "
                    "a brace of your own is written `{{` or `}}`"
                )


def fill_in(arguments: Iterable[str], values: Mapping[str, str]) -> list[str]:
    """The arguments with their placeholders filled in; checked by `check_placeholders`."""
    return [argument.format_map(values) for argument in arguments]


Arguments = Annotated[tuple[Text, ...], Field(min_length=1)]

# The commands of each launcher: those it needs, and those it takes.
_NEEDED = {"process": ("command",), "command": ("scale", "stop"), "manual": ()}
_TAKEN = {"process": ("command",), "command": ("scale", "stop", "status"), "manual": ()}
_PLACEHOLDERS = {
    "command": (*FLEET_PLACEHOLDERS, "index"),
    "scale": (*FLEET_PLACEHOLDERS, "replicas"),
}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


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
        description="Working directory of the commands, relative to the configuration file; "
        "without it that of the configuration file.",
    )
    environment: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="More environment variables of the commands; secrets by reference. "
        "`BACKLOG_TOPIC`, `BACKLOG_GROUP`, `BACKLOG_BOOTSTRAP_SERVERS`, `BACKLOG_ROLE`, "
        "`BACKLOG_STREAM` and `BACKLOG_RECOVERY` are always set; Airflow's own (`AIRFLOW_…`, with "
        "its secrets) are not passed on.",
    )
    scale: Arguments | None = Field(
        default=None,
        description="`command`: makes `{replicas}` consumers run, also found in "
        "`BACKLOG_REPLICAS`; the placeholders of `command` but `{index}` are filled in.",
    )
    stop: Arguments | None = Field(default=None, description="`command`: ends all of them.")
    status: Arguments | None = Field(
        default=None,
        description="`command`: prints how many run, as the first number of its output.",
    )
    command_within: Duration = Field(
        default=timedelta(minutes=10),
        description="`command`: how long one of the commands may take, and how long until `status` "
        "says what was asked for.",
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

    @field_validator("directory", mode="before")
    @classmethod
    def _anchor_directory(cls, value: object, info: ValidationInfo) -> object:
        return anchor_path("" if value is None else value, info) if info.context else value

    @field_validator("environment")
    @classmethod
    def _check_environment(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, item in value.items():
            if not _VARIABLE.fullmatch(name):
                raise fail_at((name,), "is not a name of an environment variable")
            if name.upper().startswith("BACKLOG_"):
                raise fail_at((name,), "refused: backlogctl sets the variables `BACKLOG_*` itself")
            if "\0" in item.get_secret_value():
                raise fail_at((name,), "must not hold a NUL character")
        return value

    @model_validator(mode="after")
    def _check_commands(self) -> Consumers:
        for name in _NEEDED[self.launcher]:
            if getattr(self, name) is None:
                raise ValueError(f"`launcher: {self.launcher}` needs `{name}`")
        for name in ("command", "scale", "stop", "status"):
            arguments = getattr(self, name)
            if arguments is None:
                continue
            if name not in _TAKEN[self.launcher]:
                raise ValueError(f"`{name}` does not go with `launcher: {self.launcher}`")
            try:
                check_placeholders(arguments, _PLACEHOLDERS.get(name, FLEET_PLACEHOLDERS))
            except ValueError as error:
                raise fail_at((name,), str(error)) from None
        return self

    @field_serializer("environment", when_used="json")
    def _name_variables(self, value: dict[str, SecretStr]) -> list[str]:
        # Plans hold the names; even a masked value would say that there is one.
        return sorted(value)

    def reveal_environment(self) -> dict[str, str]:
        """The variables with their values: only for the call that starts a command."""
        return {name: item.get_secret_value() for name, item in self.environment.items()}


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
    engine: Literal["auto", "wire", "record"] = Field(
        default="auto",
        description="`wire` relays whole record batches, which costs less. `record` reads and "
        "writes each message with librdkafka. `auto`: `wire` where it can log in and is installed "
        "(the extra `wire`).",
    )
    max_lag_at_cutover: Annotated[int, Field(ge=0)] = Field(
        default=1000,
        description="The relay ends when the source's lag is at most this; the original consumers "
        "read the rest.",
    )
