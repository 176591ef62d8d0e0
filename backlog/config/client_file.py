"""A file of librdkafka's properties, `name=value` a line, as a cluster of backlog.yaml."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from backlog.config.base import explain
from backlog.config.kafka_properties import FILE_PROPERTIES, OWN_PROPERTIES, SECRET_PROPERTIES
from backlog.config.sections import Cluster
from backlog.errors import ConfigurationError

_REFERENCE = re.compile(r"\$\{(?:env|file):[^{}]+\}")
_LIBRARY_VALUES = ("probe",)  # of ssl.ca.location: librdkafka looks for it itself
_HINT = (
    "it takes librdkafka's names, one `name=value` a line: sasl.username and sasl.password, not "
    "Java's sasl.jaas.config; ssl.ca.location (PEM), not ssl.truststore.location"
)


@dataclass(frozen=True, slots=True)
class ClientProperties:
    """What backlog.yaml says of the cluster.

    Attributes:
        properties: secrets are references to variables.
        variables: by environment variable the property whose value it must hold.
        values: the same variables with their values.
        left_out: properties that backlogctl sets itself.
    """

    properties: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict, repr=False)
    left_out: tuple[str, ...] = ()


def read_client_properties(path: Path, bootstrap: str | None = None) -> ClientProperties:
    """Reads it; relative paths in it are relative to the working directory, as for librdkafka.

    Args:
        bootstrap: in the place of `bootstrap.servers` in the file.

    Raises:
        ConfigurationError: it cannot be read, or a property is not taken. Holds no value.
    """
    lines: dict[str, int] = {}
    found: dict[str, str] = {}
    for number, line in enumerate(_read_lines(path), 1):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not equals or not name:
            raise _refuse(path, number, "it is not `name=value`")
        if name in found:
            raise _refuse(path, number, f"`{name}` stands twice")
        lines[name], found[name] = number, value
    left_out = tuple(name for name in found if name in OWN_PROPERTIES)
    for name in left_out:
        del found[name]
    if bootstrap is not None:
        found["bootstrap.servers"] = bootstrap
    return _refer(_check(path, lines, found), left_out)


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        reason = f"the file cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        reason = "the file is not UTF-8 text"
    raise ConfigurationError(reason, subject=str(path), hint=_HINT)


def _check(path: Path, lines: dict[str, int], found: dict[str, str]) -> dict[str, str]:
    try:
        Cluster.model_validate(found)
    except ValidationError as error:
        problem = explain(error.errors(include_url=False)[0])
    else:
        return found
    name = ".".join(problem.path)
    told = f"{name}: {problem.text}" if name else problem.text
    raise _refuse(path, lines.get(name), told)


def _refer(found: dict[str, str], left_out: tuple[str, ...]) -> ClientProperties:
    properties: dict[str, str] = {}
    variables: dict[str, str] = {}
    values: dict[str, str] = {}
    for name, value in found.items():
        is_path = name in FILE_PROPERTIES and value not in _LIBRARY_VALUES
        if name in SECRET_PROPERTIES and not _REFERENCE.fullmatch(value):
            variable = f"KAFKA_{name.replace('.', '_').upper()}"
            variables[variable], values[variable] = name, value
            value = f"${{env:{variable}}}"
        elif is_path and not value.startswith("${"):
            value = str(Path(value).expanduser().absolute())
        properties[name] = value
    return ClientProperties(properties, variables, values, left_out)


def _refuse(path: Path, line: int | None, told: str) -> ConfigurationError:
    where = str(path) if line is None else f"{path}, line {line}"
    return ConfigurationError(told, subject=where, hint=_HINT)
