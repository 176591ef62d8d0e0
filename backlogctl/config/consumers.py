"""How a stream's consumers are launched, and how its backlog is drained."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from string import Formatter
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    SecretStr,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)

from backlogctl.config.base import Duration, LocalPath, Section, Text, anchor_path, fail_at
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
_NEEDED = {
    "process": ("command",),
    "command": ("scale", "stop"),
    "manual": (),
    "kubernetes": ("kubernetes",),
    "compose": ("compose",),
}
_TAKEN = {
    "process": ("command",),
    "command": ("scale", "stop", "status"),
    "manual": (),
    "kubernetes": (),
    "compose": (),
}
_PLACEHOLDERS = {
    "command": (*FLEET_PLACEHOLDERS, "index"),
    "scale": (*FLEET_PLACEHOLDERS, "replicas"),
}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
# `deployment/orders`, `statefulset/orders`, `rollouts.v1alpha1.argoproj.io/orders`.
_WORKLOAD = re.compile(
    r"(?:deployment|statefulset|[a-z0-9-]+\.v[0-9][a-z0-9]*\.[a-z0-9.-]+)/[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?"
)
_PROJECT = re.compile(r"[a-z0-9][a-z0-9_-]*")
_SERVICE = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._-]*")
_DNS_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


class Ramp(Section):
    """How fast more consumers are started, so that what they write to survives."""

    step: Positive = Field(default=10, description="Consumers started at a time.")
    every: Duration = Field(
        default=timedelta(seconds=1), description="Time between two steps of the ramp."
    )


def _check_told(value: dict[str, str]) -> dict[str, str]:
    for name, template in value.items():
        if not _VARIABLE.fullmatch(name):
            raise fail_at((name,), "is not a name of an environment variable")
        try:
            check_placeholders([template], FLEET_PLACEHOLDERS)
        except ValueError as error:
            raise fail_at((name,), str(error)) from None
    for word in ("{topic}", "{group}"):
        if not any(word in template for template in value.values()):
            raise ValueError(
                f"none of them has `{word}`: the recovery's consumers would read what the others do"
            )
    return value


def _name_told() -> dict[str, str]:
    return {"BACKLOG_TOPIC": "{topic}", "BACKLOG_GROUP": "{group}"}


ToldVariables = Annotated[dict[str, Text], AfterValidator(_check_told)]
"""By name the template of its value: what a consumer is told where it cannot be given arguments."""


class Kubernetes(Section):
    """Consumers that are pods: whose number is set, and how more of them are made."""

    conn_id: Text | None = Field(
        default=None,
        description="In a file that only Airflow reads: a connection of its provider for "
        "Kubernetes, which gives `namespace`, `context` and the kubeconfig.",
    )
    workload: str = Field(
        description="What keeps the stream's own consumers: `deployment/NAME`, `statefulset/NAME`, "
        "or `PLURAL.VERSION.GROUP/NAME` of anything that has a scale subresource, such as "
        "`rollouts.v1alpha1.argoproj.io/orders`."
    )
    namespace: str | None = Field(
        default=None, description="Its namespace; without it that of the context."
    )
    context: Text | None = Field(
        default=None,
        description="A context of the kubeconfig. Without it: inside a pod its service account, "
        "else the current context.",
    )
    kubeconfig: LocalPath | None = Field(
        default=None,
        # Another machine has another place for it, and goes on with the same recovery.
        exclude=True,
        description="The kubeconfig file; without it those of `KUBECONFIG`, else ~/.kube/config.",
    )
    kubeconfig_text: SecretStr | None = Field(
        default=None,
        exclude=True,
        description="The kubeconfig itself, by reference, in the place of a file: "
        "`${env:SHOP_KUBECONFIG}`. Paths in it are from the working directory.",
    )
    container: Text | None = Field(
        default=None,
        description="The container that reads the topic; without it the first of the pod.",
    )
    variables: ToldVariables = Field(
        default_factory=_name_told,
        description="Environment variables that the recovery's pods have in the place of the "
        "workload's own: one with `{topic}`, one with `{group}`, and more where they are needed. "
        "The placeholders of `command` but `{index}` are filled in. Without it `BACKLOG_TOPIC` and "
        "`BACKLOG_GROUP`.",
    )
    template: dict[str, Any] = Field(
        default_factory=dict,
        description="What is different in the recovery's pods: a JSON merge patch of the "
        "workload's pod template, such as `{spec: {affinity: null}}`. Lists are replaced whole.",
    )

    @field_validator("workload")
    @classmethod
    def _check_workload(cls, value: str) -> str:
        if not _WORKLOAD.fullmatch(value):
            raise ValueError(
                "must be `deployment/NAME`, `statefulset/NAME` or `PLURAL.VERSION.GROUP/NAME`"
            )
        return value

    @field_validator("namespace")
    @classmethod
    def _check_namespace(cls, value: str | None) -> str | None:
        if value is not None and not _DNS_LABEL.fullmatch(value):
            raise ValueError("is not the name of a namespace")
        return value


class Compose(Section):
    """Consumers that are containers of Docker Compose: of which file, and what they are told."""

    files: Annotated[tuple[LocalPath, ...], Field(min_length=1)] = Field(
        description="The compose files, as after each `--file`; relative to the configuration file."
    )
    project: str | None = Field(
        default=None,
        description="The project's name, as after `--project-name`; without it as Compose "
        "finds it.",
    )
    service: str = Field(description="The service that keeps the stream's own consumers.")
    variables: ToldVariables = Field(
        default_factory=_name_told,
        description="Environment variables that the recovery's containers have in the place of "
        "the service's own: as `kubernetes.variables`.",
    )

    @field_validator("project")
    @classmethod
    def _check_project(cls, value: str | None) -> str | None:
        if value is not None and not _PROJECT.fullmatch(value):
            raise ValueError(
                "is not the name of a project: lowercase letters, digits, `-` and `_`, "
                "a letter or digit first"
            )
        return value

    @field_validator("service")
    @classmethod
    def _check_service(cls, value: str) -> str:
        if not _SERVICE.fullmatch(value):
            raise ValueError("is not the name of a service")
        return value


class Consumers(Section):
    """The stream's consumers, as the tool starts and stops them."""

    launcher: Literal["process", "command", "manual", "kubernetes", "compose"] = Field(
        description="`process`: local processes; `command`: your own commands; `manual`: people; "
        "`kubernetes`: pods, see docs/kubernetes.md; `compose`: containers, see docs/compose.md."
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
        "says what was asked for. `kubernetes`, `compose`: how long until all pods are ready, or "
        "all containers run.",
    )
    stop_within: Duration = Field(
        default=timedelta(seconds=60),
        description="How long consumers may take to end, and the group to become empty.",
    )
    kubernetes: Kubernetes | None = Field(
        default=None, description="`kubernetes`: which pods, where, and what they are told."
    )
    compose: Compose | None = Field(
        default=None, description="`compose`: which service, and what its consumers are told."
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
        for name in ("kubernetes", "compose"):
            if getattr(self, name) is not None and self.launcher != name:
                raise ValueError(f"`{name}` does not go with `launcher: {self.launcher}`")
        if self.environment and self.launcher == "kubernetes":
            raise fail_at(
                ("environment",),
                "does not go with `launcher: kubernetes`: pods have the variables of the "
                "workload's template, and those of `kubernetes.variables`",
            )
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
