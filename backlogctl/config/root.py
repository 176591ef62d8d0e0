"""The whole file, and how it is loaded."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from backlogctl.config import base, documents, references
from backlogctl.config.base import DEFAULT_LEDGER, DatabaseUrl, Label, Section, check_label
from backlogctl.config.delivery import LookBack, OutboxSection
from backlogctl.config.documents import DocumentError, parse_document
from backlogctl.config.formats import Encoded, SchemaRegistry
from backlogctl.config.hooks import Hook, check_hook_streams
from backlogctl.config.references import Problem, Resolved, resolve_references
from backlogctl.config.sections import (
    Cluster,
    Guards,
    KafkaLedger,
    Source,
    SparkSection,
    Staging,
    Watch,
    check_database_url,
)
from backlogctl.config.streams import OffPeak, Stream
from backlogctl.errors import ConfigurationError, Refused, UsageError

DEFAULT_FILE = "backlog.yaml"
_IN_MEMORY = "sqlite:///:memory:"
# Kafka's own, whatever `guards` says (fault 60).
_INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")

# Secrets of every configuration of this process, so that the last line of defence, which prints
# errors of any library, needs no configuration at hand.
_SECRETS: set[str] = set()
_SECRETS_LOCK = threading.Lock()


class Config(Section):
    """backlog.yaml, checked. Nothing it prints or dumps holds a secret."""

    ledger: Annotated[SecretStr, DatabaseUrl] = Field(
        default=SecretStr(DEFAULT_LEDGER),
        description="SQLAlchemy URL of the ledger, SQLite or PostgreSQL. A SQLite file is relative "
        "to the configuration file.",
    )
    staging: Staging = Field(
        default_factory=Staging, description="Where staged messages lie until they are injected."
    )
    kafka_ledger: KafkaLedger = Field(
        default_factory=KafkaLedger, description="The topic that says which chunks were injected."
    )
    spark: SparkSection = Field(
        default_factory=SparkSection, description="The Spark that reads the source and injects."
    )
    watch: Watch = Field(default_factory=Watch, description="How `backlogctl watch` samples.")
    jobs: tuple[
        Literal["see", "hold", "rebuild", "expand", "offload", "redrive", "doctor"], ...
    ] = Field(
        default=(),
        description="What the logins of this file are meant for, such as `[see]` where they only "
        "watch: the doctor asks for the rights of no other job, nor for what it needs besides. "
        "Empty: everything that the streams are configured for.",
    )
    look_back: LookBack | None = Field(
        default=None,
        description="Transactional messages, for `backlogctl lookback`: [look-back](look-back.md).",
    )
    guards: Guards = Field(
        default_factory=Guards, description="What is refused whatever a command says."
    )
    clusters: dict[Label, Cluster] = Field(
        default_factory=dict, description="Kafka clusters by name: client properties."
    )
    sources: dict[Label, Source] = Field(default_factory=dict, description="Databases by name.")
    registries: dict[Label, SchemaRegistry] = Field(
        default_factory=dict, description="Schema registries by name: [formats](formats.md)."
    )
    outboxes: dict[Label, OutboxSection] = Field(
        default_factory=dict,
        description="Databases that hold an [outbox](outbox.md), by their names under `sources`.",
    )
    streams: dict[Label, Stream] = Field(default_factory=dict, description="Streams by name.")

    _secrets: frozenset[str] = PrivateAttr(default=frozenset())

    @field_validator("ledger")
    @classmethod
    def _check_ledger(cls, value: SecretStr) -> SecretStr:
        return check_database_url(value)

    @field_validator("streams", mode="before")
    @classmethod
    def _name_streams(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        return {
            name: {**item, "name": name} if isinstance(item, Mapping) else item
            for name, item in value.items()
        }

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        check_hook_streams(self.watch.hooks, self.streams)
        if self.look_back is not None:
            at: documents.KeyPath = ("look_back", "cluster")
            _check_known(at, "cluster", self.look_back.cluster, self.clusters)
        for name, outbox in self.outboxes.items():
            _check_known(("outboxes", name), "source", name, self.sources)
            at = ("outboxes", name, "cluster")
            _check_known(at, "cluster", outbox.cluster, self.clusters)
        for name, stream in self.streams.items():
            _check_known(("streams", name, "cluster"), "cluster", stream.cluster, self.clusters)
            for part, (kind, said) in stream.part_formats.items():
                if said.registry is not None:
                    place = ("source", "message") if isinstance(said, Encoded) else ("formats",)
                    at = ("streams", name, *place, part, kind, "registry")
                    _check_known(at, "registry", said.registry, self.registries)
            if stream.source is None:
                continue
            at = ("streams", name, "source")
            key = "database" if stream.source.outbox is None else "outbox"
            _check_known((*at, key), "source", stream.source.database, self.sources)
            if consumed := stream.source.consumed:
                at = (*at, "consumed")
                _check_known((*at, "database"), "source", consumed.database, self.sources)
        return self

    def model_post_init(self, context: Any, /) -> None:
        """Remembers what must be masked."""
        with _SECRETS_LOCK:
            _SECRETS.update(self._find_secrets())

    @classmethod
    def from_text(
        cls,
        text: str,
        base_dir: Path | None = None,
        env: Mapping[str, str] | None = None,
        *,
        file: str = DEFAULT_FILE,
        find_connection: references.FindConnection | None = None,
    ) -> Self:
        """Reads a configuration.

        Args:
            base_dir: what relative paths are relative to; the working directory without it.
            env: where `${env:NAME}` is looked up; the process's environment without it.
            file: what errors call the text.
            find_connection: how `${airflow:...}` is looked up; None outside of Airflow.

        Raises:
            ConfigurationError: everything that is wrong with it, by key and line, no values.
            Refused: a stream's topic is denied.
        """
        base_dir = (base_dir or Path.cwd()).absolute()
        problem: ConfigurationError | None = None
        try:
            document = documents.parse_document(text)
        except documents.DocumentError as error:
            where = f"{file}, line {error.line}" if error.line else file
            problem = ConfigurationError(error.problem, subject=where, hint=_HINT)
        if problem:
            raise problem
        problems = base.check_keys(cls, document.data)
        resolved = references.resolve_references(
            document.data, os.environ if env is None else env, base_dir, find_connection
        )
        problems += resolved.problems
        # Defaults that are paths are relative to the file, too.
        data = {"ledger": DEFAULT_LEDGER, "staging": {}, **resolved.data}
        config: Self | list[Problem] = problems
        if not problems:
            config = base.validate(lambda: cls.model_validate(data, context=base_dir))
        if isinstance(config, list):
            raise _describe(config, resolved, document.lines, file)
        config._remember(resolved)
        config._refuse_denied_topics(file)
        return config

    @classmethod
    def for_bootstrap(cls, bootstrap: str, group: str, topic: str | Sequence[str]) -> Self:
        """A configuration without a file, for `status` and `gaps`: a stream for each topic.

        Its ledger is in memory: nothing stays behind.

        Raises:
            UsageError: a name is not one that Kafka takes.
            Refused: a topic is denied.
        """
        topics = [topic] if isinstance(topic, str) else list(topic)
        data = {"ledger": _IN_MEMORY, "clusters": {"default": {"bootstrap.servers": bootstrap}}}
        config = base.validate(lambda: cls.model_validate(data))
        if isinstance(config, list):
            raise UsageError(config[0].text, subject="--bootstrap")
        return config.for_group("default", group, topics)

    def for_group(self, cluster: str, group: str, topics: Sequence[str]) -> Self:
        """This configuration for a group that no stream is about: a stream for each topic.

        Its ledger is in memory: nothing stays behind.

        Raises:
            UsageError: there is no such cluster, or a name is not one that Kafka takes.
            Refused: a topic is denied.
        """
        if cluster not in self.clusters:
            raise UsageError(
                base.describe_unknown("cluster", cluster, self.clusters), subject="--cluster"
            )
        places = [
            {"name": topic, "cluster": cluster, "topic": topic, "group": group} for topic in topics
        ]
        streams = base.validate(
            lambda: {place["name"]: Stream.model_validate(place) for place in places}
        )
        if isinstance(streams, list):
            raise UsageError(streams[0].text, subject="--group or --topic")
        made = self.model_copy(update={"ledger": SecretStr(_IN_MEMORY), "streams": streams})
        made._refuse_denied_topics("--topic")
        return made

    def stream(self, name: str) -> Stream:
        """The stream of that name. Raises UsageError: there is none; names the nearest."""
        if found := self.streams.get(name):
            return found
        nearest = base.find_nearest(name, self.streams)
        hint = f"the nearest is {nearest}" if nearest else "the configuration has no streams"
        raise UsageError("there is no such stream", subject=f"stream {name}", hint=hint)

    def is_meant_for(self, job: str) -> bool:
        """Whether this file's logins do such work."""
        return not self.jobs or job in self.jobs

    def cluster_of(self, stream: Stream) -> Cluster:
        """The cluster that a stream of this configuration is on."""
        return self.clusters[stream.cluster]

    def ledger_url(self) -> str:
        """The ledger's URL with its password: only for the call that connects."""
        return self.ledger.get_secret_value()

    def mask_secrets(self, text: str) -> str:
        """The text with `***` for each secret of this configuration."""
        return references.mask(text, self._find_secrets())

    def _find_secrets(self) -> set[str]:
        urls = [self.ledger_url(), *(source.reveal_url() for source in self.sources.values())]
        if self.look_back is not None:
            urls.append(self.look_back.reveal_url())
        # Host, port and database may be seen, unless one of them is the password as well.
        secrets = self._secrets - {name for url in urls for name in references.find_url_names(url)}
        passwords = {part for url in urls for part in references.find_url_secrets(url)}
        holders: list[Cluster | Hook | LookBack | SchemaRegistry] = [
            *self.clusters.values(),
            *self.registries.values(),
            *self.watch.hooks.values(),
            *([self.look_back] if self.look_back is not None else ()),
        ]
        return {*secrets, *passwords, *(part for one in holders for part in one.reveal_secrets())}

    def _remember(self, resolved: Resolved) -> None:
        self._secrets = resolved.secrets
        with _SECRETS_LOCK:
            _SECRETS.update(self._find_secrets())

    def find_denial(self, topic: str) -> str | None:
        """The pattern by which no stream may have this topic; None where one may."""
        denied = (*_INTERNAL_TOPICS, self.kafka_ledger.topic, *self.guards.deny_topics)
        return next((pattern for pattern in denied if fnmatchcase(topic, pattern)), None)

    def _refuse_denied_topics(self, file: str) -> None:
        for name, stream in self.streams.items():
            if pattern := self.find_denial(stream.topic):
                raise Refused(
                    f"the topic {stream.topic} is denied by the pattern `{pattern}`",
                    subject=f"{file}: streams.{name}.topic",
                    hint="see `guards.deny_topics`",
                )


_HINT = "docs/configuration.md lists every key"


def name_file(env: Mapping[str, str]) -> Path:
    """The file that is read where none is named."""
    return Path(env.get("BACKLOG_CONFIG") or DEFAULT_FILE)


def load_config(
    path: Path | None = None,
    env: Mapping[str, str] | None = None,
    find_connection: references.FindConnection | None = None,
) -> Config:
    """Reads the file named, else the one `BACKLOG_CONFIG` names, else ./backlog.yaml.

    Raises:
        ConfigurationError: there is none, it cannot be read, or it is wrong.
        Refused: a stream's topic is denied.
    """
    env = os.environ if env is None else env
    file = path or name_file(env)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        reason, hint = "there is no such file", "write one with `backlogctl init`"
    except UnicodeDecodeError:
        reason, hint = "the file is not UTF-8 text", ""
    except OSError as error:
        reason, hint = f"the file cannot be read: {error.strerror}", ""
    else:
        directory = file.absolute().parent
        return Config.from_text(
            text, directory, env, file=str(file), find_connection=find_connection
        )
    raise ConfigurationError(reason, subject=str(file), hint=hint)


def mask_secrets(text: str) -> str:
    """The text with `***` for each secret of any configuration loaded in this process."""
    with _SECRETS_LOCK:
        secrets = frozenset(_SECRETS)
    return references.mask(text, secrets)


def _check_known(
    path: documents.KeyPath, kind: str, name: str, known: Mapping[str, object]
) -> None:
    if name not in known:
        raise base.fail_at(path, base.describe_unknown(kind, name, known))


def _describe(
    problems: Sequence[Problem], resolved: Resolved, lines: Mapping[tuple[str, ...], int], file: str
) -> ConfigurationError:
    texts: list[str] = []
    for problem in problems:
        depth = next((n for n in range(len(problem.path), 0, -1) if problem.path[:n] in lines), 0)
        line = f" (line {lines[problem.path[:depth]]})" if depth else ""
        # What a check says is ours, but a name in it may have come by reference.
        text = references.mask(problem.text, resolved.values)
        path = ".".join(part for part in problem.path if part != "[key]")
        texts.append(f"{path}{line}: {text}" if path else text)
    if len(texts) > 1:
        message = f"{len(texts)} problems:\n" + "\n".join(f"  - {item}" for item in texts)
    else:
        message = texts[0]
    return ConfigurationError(message, subject=file, hint=_HINT)


# The part of backlog.yaml that a scheduler shows before anything runs; no secret is resolved.
#
# A missing or wrong file becomes the outline's `problem`; the first task reports it again.


@dataclass(frozen=True, slots=True)
class StreamOutline:
    """One stream; `off_peak` is None where it may be repaired at any time."""

    name: str
    rebuilds: bool
    off_peak: OffPeak | None


@dataclass(frozen=True, slots=True)
class Outline:
    """Streams in the file's order; `problem` is why there may be none, or not all."""

    file: Path
    streams: tuple[StreamOutline, ...] = ()
    problem: str = ""


def read_outline(path: Path | None = None, env: Mapping[str, str] | None = None) -> Outline:
    """Names and windows of the streams of the file that `load_config` would read."""
    env = os.environ if env is None else env
    file = path or name_file(env)
    try:
        data = parse_document(file.read_text(encoding="utf-8")).data
    except FileNotFoundError:
        return Outline(file, problem=f"there is no file {file}")
    except (OSError, UnicodeDecodeError) as error:
        return Outline(file, problem=f"{file} cannot be read: {type(error).__name__}")
    except DocumentError as error:
        return Outline(file, problem=f"{file}: {error.problem}")
    streams = data.get("streams")
    if not isinstance(streams, Mapping) or not streams:
        return Outline(file, problem=f"{file} has no streams")
    found = [_read_stream(name, entry, env, file) for name, entry in streams.items()]
    good = tuple(stream for stream in found if stream is not None)
    return Outline(file, good, "" if len(good) == len(found) else f"{file}: a stream is not right")


def _read_stream(name: str, entry: Any, env: Mapping[str, str], file: Path) -> StreamOutline | None:
    try:
        check_label(name)
        if not isinstance(entry, Mapping):
            return None
        window = entry.get("off_peak")
        if window is not None:
            # A zone or an hour may come from the environment; neither is a secret.
            found = resolve_references({"off_peak": window}, env, file.absolute().parent)
            window = found.data["off_peak"]
        off_peak = None if window is None else OffPeak.model_validate(window)
    except (ValueError, ValidationError):
        return None
    return StreamOutline(name, entry.get("source") is not None, off_peak)
