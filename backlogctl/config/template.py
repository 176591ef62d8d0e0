"""The commented backlog.yaml that `backlogctl init` writes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from pydantic import ValidationError

from backlogctl.config.base import check_topic, explain
from backlogctl.config.kafka_properties import FILE_PROPERTIES, OWN_PROPERTIES, SECRET_PROPERTIES
from backlogctl.config.root import Config
from backlogctl.config.sections import Cluster
from backlogctl.errors import ConfigurationError

# A file of librdkafka's properties, `name=value` a line, as a cluster of backlog.yaml.

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


_FILE = Path(__file__).with_name("template.yaml")


@dataclass(frozen=True, slots=True)
class TemplateParts:
    """Sections of the template; `stream` is what follows the group of the first stream."""

    head: str
    sources: str
    stream: str
    outboxes: str


def render_template() -> str:
    """A backlog.yaml to edit; it loads as it is with `SHOP_PASSWORD` set."""
    return _FILE.read_text(encoding="utf-8")


def split_template() -> TemplateParts:
    text = render_template()
    marks = ("clusters:\n", "sources:\n", "streams:\n", "    isolation:", "\n# Databases under")
    clusters, sources, streams, stream, outboxes = (text.index(mark) for mark in marks)
    return TemplateParts(
        text[:clusters], text[sources:streams], text[stream:outboxes], text[outboxes:]
    )


# A backlog.yaml for streams that were found on a cluster: what is known stands in it, the rest as
# comments of the template.

CLUSTER = "main"
_LONGEST = 249
# In a file that is written: a name that only the application's code tells.
FILL_IN = "FILL_IN"
# Read as text by every reader of YAML; other texts are quoted.
_PLAIN = re.compile(
    r"(?!(?:true|false|null|yes|no|on|off|y|n)$)[a-z_](?:[\w./-]|:(?=\w))*", re.ASCII | re.I
)
_MADE_BY = "# Made by `backlogctl init`: the streams are what was found and chosen.\n"


@dataclass(frozen=True, slots=True)
class DiscoveredStream:
    """A stream to be written; `name` is its key, `more` what else it says, as lines of YAML."""

    name: str
    topic: str
    group: str
    more: str = ""


def name_streams(places: Iterable[tuple[str, str]]) -> list[DiscoveredStream]:
    """Streams of (group, topic), each with a name of its own that the configuration takes.

    The topic's name; `<topic>.<group>` where several groups read it.
    """
    wanted = sorted(set(places), key=lambda place: (place[1], place[0]))
    readers = Counter(topic for _, topic in wanted)
    taken = {topic for topic, count in readers.items() if count == 1}
    found: list[DiscoveredStream] = []
    for group, topic in wanted:
        name = topic
        if readers[topic] > 1:
            name = _find_free(f"{topic}.{make_label(group)}", taken)
            taken.add(name)
        found.append(DiscoveredStream(name, topic, group))
    return found


def explain_unwritable(group: str) -> str:
    """Why no stream can have a group of this name; "" where one can."""
    if "${" in group:
        return "backlog.yaml does not take this name: `${` begins a reference"
    stream = DiscoveredStream("stream", "topic", group)
    cluster = _render_cluster({"bootstrap.servers": "host:9092"})
    try:
        config = Config.from_text("".join([*cluster, *_render_streams([stream])]), env={})
    except ConfigurationError as error:
        reason = error.message.partition("): ")[2] or error.message
        return f"backlog.yaml does not take this name: {reason}"
    written = config.stream(stream.name).group == group
    return "" if written else "backlog.yaml does not take this name as it is"


def is_topic(name: str) -> bool:
    """Whether Kafka takes it as a topic's name."""
    try:
        return bool(check_topic(name))
    except ValueError:
        return False


def make_label(text: str) -> str:
    """A text as a name that the configuration takes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-") or "group"


def _find_free(name: str, taken: set[str]) -> str:
    number, free = 1, name[:_LONGEST]
    while free in taken:
        number += 1
        free = f"{name[: _LONGEST - len(str(number)) - 1]}-{number}"
    return free


def render_discovered(
    properties: Mapping[str, str],
    streams: Sequence[DiscoveredStream],
    sources: Mapping[str, str] | None = None,
    notes: str = "",
) -> str:
    """A backlog.yaml with these streams.

    Args:
        properties: the cluster's client properties; secrets in them are references.
        sources: databases' URLs by name, secrets as references.
        notes: what else was found, as text; it is written as a comment.
    """
    template = split_template()
    title, _, head = template.head.partition("\n")
    parts = [title, "\n", _MADE_BY, head, *_render_cluster(properties), "\n"]
    if sources:
        parts += ["sources:\n"]
        parts += [f"  {write_text(k)}:\n    url: {write_text(v)}\n" for k, v in sources.items()]
    else:
        parts += _comment_out(template.sources.rstrip("\n"), "")
    parts += ["\n", *_comment_out(notes, ""), *_render_streams(streams)]
    if streams:
        parts += ["    # What else a stream may say; a rebuild needs `source`, an expansion\n"]
        parts += ["    # `consumers`.\n", *_comment_out(template.stream, "    ")]
    return "".join([*parts, template.outboxes])


def _render_cluster(properties: Mapping[str, str]) -> Iterator[str]:
    yield f"clusters:\n  {CLUSTER}:\n"
    for name, value in properties.items():
        yield f"    {write_text(name)}: {write_text(value)}\n"


def _render_streams(streams: Sequence[DiscoveredStream]) -> Iterator[str]:
    yield "streams:\n" if streams else "streams: {}\n"
    for stream in streams:
        yield f"  {write_text(stream.name)}:\n    cluster: {CLUSTER}\n"
        yield f"    topic: {write_text(stream.topic)}\n    group: {write_text(stream.group)}\n"
        yield stream.more


def _comment_out(text: str, indent: str) -> Iterator[str]:
    for line in text.splitlines():
        rest = line.removeprefix(indent)
        told = rest if rest.startswith("#") else f"# {rest}"
        yield f"{indent}{told}".rstrip() + "\n"


def write_text(text: str) -> str:
    """A text as a scalar of YAML, in one line."""
    if _PLAIN.fullmatch(text):
        return text
    width = 10 * len(text) + 100  # one line, whatever it is escaped to
    written: str = yaml.safe_dump(text, default_style='"', allow_unicode=True, width=width)
    return written.rstrip("\n")
