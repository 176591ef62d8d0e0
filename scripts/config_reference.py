"""docs/configuration.md, made from the code: `python -m scripts.config_reference`."""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterator
from datetime import timedelta
from types import UnionType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from backlogctl.config import Config, Expr, render_template
from backlogctl.config.base import LATER_KEYS, LATER_VALUES, Names, find_model, known_keys
from backlogctl.config.kafka_properties import (
    ALLOWED_PROPERTIES,
    CODE_PROPERTIES,
    OWN_PROPERTIES,
    SECRET_PROPERTIES,
)
from backlogctl.config.sections import Cluster
from backlogctl.config.streams import ClockTime

_INTRO = """\
# Configuration

<!-- Made by `python -m scripts.config_reference > docs/configuration.md`. Do not edit. -->

`backlogctl init` writes a commented file, and `backlogctl init --bootstrap HOST:PORT` one with the
consumer groups of a cluster (below). It is found by `--config FILE`, then `BACKLOG_CONFIG`,
then `./backlog.yaml`. Unknown keys and keys that stand twice are errors, which name the key, its
line and the nearest known key. Relative paths are relative to the file.

Durations are written `500ms`, `30s`, `10m`, `6h`, `30d` or `1h30m`. Words are read as YAML 1.2
reads them: only `true` and `false` are booleans.

## Secrets

A secret stands in the file only by reference: `${env:NAME}` for an environment variable,
`${file:PATH}` for a file's text without its last line break, and, in a file that only Airflow
reads, `${airflow:CONNECTION.FIELD}` for a connection's `host`, `port`, `login`, `password`,
`schema`, `url` (a database's) or `extra.KEY`. There a cluster, a source or `consumers.kubernetes`
may be a connection as a whole: `conn_id: NAME`. A reference may stand within a longer text. In
the user or password of a URL the value is percent-encoded as it is put in, so the variable holds
the password as it is. A password written into the file is refused, a variable that is not set or
empty too. Secrets are masked in all output; so is whatever a reference in a secret key gave,
except a URL's host, port and database. References are not taken in SQL, which goes into the plan,
in `spark.conf`, which Spark shows, nor in the arguments of consumers' commands, which everybody
on the machine sees: their secrets come by `environment`.

## From a cluster

`backlogctl init --bootstrap HOST:PORT` lists the cluster's consumer groups with the topics that
each has committed on, asks which to take (numbers, names, patterns, or all), and writes
`backlog.yaml` with a stream for each topic of each. Without a terminal `--group NAME` (a name or
an `fnmatch` pattern, as often as needed) or `--all` chooses; without either the groups are listed,
nothing is written, and the exit code is 2. `--json` prints what was found. A file that is there is
replaced with `--force` only.

For a cluster with logins `--client-properties FILE` names a file of librdkafka's properties, one
`name=value` a line. A secret in it becomes a reference such as `${env:KAFKA_SASL_PASSWORD}`; which
variables to export is said at the end. Paths in it become absolute. Properties that backlogctl
sets itself, such as `group.id`, are left out.

Share groups and groups of the streams protocol are listed, and cannot be taken; internal topics
are left out. A group that may not be read is `unknown`. A stream is named like its topic, or
`<topic>.<group>` where several of the groups taken read it.
"""


def render_reference() -> str:
    parts = [_INTRO, *_render_section("", Config, {}), _render_properties(), _render_later()]
    return "\n".join([*parts, "## The file that `init` writes\n", _fence(render_template())])


def _render_section(
    path: str, model: type[BaseModel], told: dict[type[BaseModel], str]
) -> Iterator[str]:
    """The section's table, then those of the sections in it; `told` is where its like is told."""
    title = path.rstrip(".") or "The file"
    heading = f"## {f'`{title}`' if path else title}\n\n{_doc(model)}"
    if (like := told.setdefault(model, title)) != title:
        yield f"{heading} Its keys are those of `{like}`.\n"
        return
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    inner: list[tuple[str, type[BaseModel]]] = []
    for key, field_name in known_keys(model).items():
        field = model.model_fields[field_name]
        rows.append(
            f"| `{key}` | {_name_type(field)} | {_name_default(field)} "
            f"| {_cell(field.description or '')} |"
        )
        part, is_mapping = find_model(field.annotation)
        if part is not None and part not in (Cluster, Expr):
            inner.append((f"{path}{key}{'.<name>' if is_mapping else ''}", part))
    yield f"{heading}\n\n" + "\n".join(rows) + "\n"
    for inner_path, part in inner:
        yield from _render_section(f"{inner_path}.", part, told)


def _name_type(field: FieldInfo) -> str:
    return _cell(_describe_type(field.annotation, tuple(field.metadata)))


def _describe_type(annotation: Any, metadata: tuple[Any, ...] = ()) -> str:
    if get_origin(annotation) is typing.Annotated:
        return _describe_type(get_args(annotation)[0], get_args(annotation)[1:])
    if get_origin(annotation) in (UnionType, typing.Union):
        kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
        return " or ".join(_describe_type(kind, metadata) for kind in kinds)
    if get_origin(annotation) is Literal:
        return " \\| ".join(f"`{value}`" for value in get_args(annotation))
    if get_origin(annotation) is dict:
        return f"mapping of names to {_describe_type(get_args(annotation)[1])}"
    if get_origin(annotation) is tuple:
        return "a name or a list" if set(get_args(Names)[1:]) <= set(metadata) else "list"
    if annotation is Cluster:
        return "client properties"
    if annotation is Expr:
        return "column or `{sql: ...}`"
    if annotation is get_args(ClockTime)[0]:
        return "`HH:MM[:SS]`"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    words = {timedelta: "duration", SecretStr: "secret text", bool: "true or false", int: "number"}
    return words.get(annotation, "path" if annotation.__name__ == "Path" else "text")


def _name_default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is PydanticUndefined or value is None or value == ():
        return ""
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if isinstance(value, timedelta):
        value = _write_duration(value)
    if isinstance(value, bool):
        value = str(value).lower()
    if isinstance(value, tuple):
        value = "[" + ", ".join(f'"{item}"' for item in value) + "]"
    return f"`{value}`"


def _write_duration(value: timedelta) -> str:
    seconds = int(value.total_seconds())
    # Days only where they are several: `24h` is how people write a day's limit.
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds % size == 0 and (unit != "d" or seconds > size):
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _render_properties() -> str:
    def write(names: frozenset[str]) -> str:
        return ", ".join(f"`{name}`" for name in sorted(names))

    return (
        "## `clusters.<name>`\n\nProperties of the Kafka client (librdkafka's names). "
        "`bootstrap.servers` is required. Files are relative to the configuration file.\n\n"
        f"- Taken: {write(ALLOWED_PROPERTIES)}.\n"
        f"- Taken by reference only: {write(SECRET_PROPERTIES)}.\n"
        f"- Refused, since they load or run code: {write(CODE_PROPERTIES)}. "
        "`sasl.mechanism: GSSAPI` is refused: the wheels of confluent-kafka have no Kerberos.\n"
        f"- Set by backlogctl itself: {write(OWN_PROPERTIES)}.\n"
    )


def _render_later() -> str:
    lines = [f"- `{_write_path(path)}`" for path in LATER_KEYS]
    for path, values in LATER_VALUES:
        lines += [f"- `{_write_path(path)}: {value}`" for value in values]
    lines.append("- `streams.<name>.source.identity.message: value:PATH`")
    return "## Not supported by this version yet\n\nRefused, and so named:\n\n" + (
        "\n".join(lines) + "\n"
    )


def _write_path(path: tuple[str, ...]) -> str:
    return ".".join("<name>" if part == "*" else part for part in path)


def _doc(model: type[BaseModel]) -> str:
    return (model.__doc__ or "").strip().splitlines()[0]


def _cell(text: str) -> str:
    return text.replace(" | ", " \\| ")


def _fence(text: str) -> str:
    return f"```yaml\n{text}```\n"


if __name__ == "__main__":
    sys.stdout.write(render_reference())
