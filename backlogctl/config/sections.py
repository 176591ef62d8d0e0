"""The sections of backlog.yaml other than streams."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    ConfigDict,
    Field,
    RootModel,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from backlogctl.config.base import (
    LATER,
    DatabaseUrl,
    Duration,
    Label,
    LocalPath,
    PlaceText,
    Section,
    Text,
    TopicName,
    Zone,
    anchor_path,
    describe_unknown,
    fail_at,
)
from backlogctl.config.hooks import Hook
from backlogctl.config.kafka_properties import (
    ALLOWED_PROPERTIES,
    FILE_PROPERTIES,
    SECRET_PROPERTIES,
    check_property,
)

Positive = Annotated[int, Field(gt=0)]

_SPARK_SECRET = re.compile(
    r"(?i)(secret|password|passwd|token|credential|access[._-]?key|accountkey|private)"
)
_SPARK_HARMLESS_END = re.compile(r"(?i)(file|location|path|provider|enabled|interval)$")
# They name a secret of Kubernetes, and hold none.
_SPARK_SECRET_NAMED = re.compile(r"spark\.kubernetes\.(driver|executor)\.secret(s|KeyRef)\.")
_SPARK_CODE = (
    "spark.plugins",
    "spark.python.daemon.module",
    "spark.python.worker.module",
    "spark.extraListeners",
    "spark.sql.extensions",
    "spark.sql.queryExecutionListeners",
    "spark.sql.streaming.streamingQueryListeners",
)
DATABASES = ("postgresql", "sqlite")
SOURCE_DATABASES = (*DATABASES, "mysql", "mariadb")


class Staging(Section):
    """Where staged messages lie until they are injected."""

    dir: LocalPath = Field(
        default=Path("staging"),
        description="Directory of staged messages and archives, relative to the configuration "
        "file. Its files are readable by the owner only.",
    )
    keep: Duration = Field(
        default=timedelta(days=30),
        description="How long staged messages are kept after their recovery is verified, rejected "
        "or cancelled; the next plan or run removes them. Manifests and lists of message ids stay. "
        "An archive is kept that long after all of it is put back or waived.",
    )
    archive: Annotated[Text, PlaceText] | None = Field(
        default=None,
        description="Where archives lie, each in a folder of its own: a directory, or a URL that "
        "Spark's Hadoop can write, such as `s3a://bucket/backlog`. Without it, `archives` in "
        "`dir`. It must not be on a broker's disk.",
    )

    @field_validator("dir")
    @classmethod
    def _make_absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()


class KafkaLedger(Section):
    """The compacted topic, on the same cluster, that says which chunks were injected."""

    topic: TopicName = Field(
        default="backlog-recovery-ledger", description="Name of the ledger topic on every cluster."
    )
    transactional_prefix: TopicName = Field(
        default="backlog",
        description="What our transactional ids start with: `<prefix>.<topic>.<partition>`. Two "
        "installations on one cluster must not share it unless they share the ledger.",
    )
    partitions: Annotated[int, Field(gt=0, le=1000)] = Field(
        default=12, description="Partitions of the ledger topic when we create it."
    )
    replication: Positive | None = Field(
        default=None,
        description="Replication factor of the ledger topic when we create it; without it three, "
        "or as many as there are brokers.",
    )


class SparkSection(Section):
    """The Spark that reads the source and injects."""

    master: Text = Field(default="local[*]", description="Spark master URL.")
    conf: dict[str, str] = Field(
        default_factory=dict,
        description="More Spark settings. Secrets, references and `spark.speculation: true` are "
        "refused: Spark shows its settings, and a repeated task must not race its first attempt.",
    )

    @field_validator("conf", mode="before")
    @classmethod
    def _check_conf(cls, value: object) -> object:
        return {name: _check_setting(name, item) for name, item in _read_properties(value).items()}


def _check_setting(name: str, value: str) -> str:
    if not name.startswith("spark."):
        raise ValueError(f"`{name}` is not a Spark setting: its name starts with `spark.`")
    if name.casefold() == "spark.speculation" and value.strip().casefold() != "false":
        raise ValueError(
            "`spark.speculation` must stay off: it runs a task twice at once, and the injection "
            "must not race itself"
        )
    harmless = _SPARK_HARMLESS_END.search(name) or _SPARK_SECRET_NAMED.match(name)
    secret_key = _SPARK_SECRET.search(name) and not harmless
    if secret_key or re.search(r"(?i)(secret|password|token)[\w.]*=", value):
        raise ValueError(
            f"`{name}` holds a secret, and Spark shows its settings in its pages and logs: give "
            "it to Spark by its own means (spark-defaults.conf, a credential provider)"
        )
    if name in _SPARK_CODE or re.search("-javaagent|-agentlib|-agentpath", value):
        raise ValueError(f"`{name}` is refused: this setting loads or runs code")
    return value


def _read_properties(value: object) -> dict[str, str]:
    """A mapping of names to text; numbers and booleans are written as Java writes them."""
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping of keys")
    found: dict[str, str] = {}
    for name, item in value.items():
        if isinstance(item, bool):
            found[name] = "true" if item else "false"
        elif isinstance(item, str | int | float):
            found[name] = str(item)
        elif isinstance(item, SecretStr):
            found[name] = item.get_secret_value()
        else:
            raise fail_at((str(name),), "must be text or a number")
    return found


class WatchedGroups(Section):
    """Which groups of a cluster are exported, beside those of the streams."""

    allow: tuple[Text, ...] = Field(
        default=("*",), description="Glob patterns of groups that are exported."
    )
    deny: tuple[Text, ...] = Field(
        default=(), description="Glob patterns of groups that are not exported, even if allowed."
    )


class Tls(Section):
    """Files for https; both are PEM."""

    certificate: LocalPath = Field(description="The certificate, with those that sign it.")
    key: LocalPath = Field(description="Its private key, without a password.")


class Watch(Section):
    """How `backlogctl watch` samples, and what it serves."""

    interval: Duration = Field(
        default=timedelta(seconds=30), description="Time between two samples."
    )
    commit_log: bool = Field(
        default=True,
        description="Whether the topic `__consumer_offsets` is read for each commit of the "
        "streams' groups; without it, or where the login may not, only what samples see is known.",
    )
    window: Duration = Field(
        default=timedelta(minutes=10),
        description="How far back trends are judged: lag that never falls, commits that do not "
        "move, rates.",
    )
    horizon: Duration = Field(
        default=timedelta(hours=24),
        description="How far ahead a loss is announced. Samples of this time are kept one each 5 "
        "minutes (all of the last hour), older ones one an hour, for 35 days.",
    )
    listen: Text = Field(
        default="127.0.0.1:9321",
        description="Address and port of /metrics, /healthz, /readyz and the page; port 0 takes a "
        "free one. Without `token_file` there is no login: what can reach it can read it.",
    )
    scaler: Text | None = Field(
        default=None,
        description="Address and port at which KEDA's external scaler is answered by gRPC, such as "
        "`0.0.0.0:9322`: [scale by the true lag](kubernetes.md#scale-by-the-true-lag). It has the "
        "certificate of `tls`, and no token.",
    )
    token_file: LocalPath | None = Field(
        default=None,
        description="A file with a token that every request must have, but /healthz and /readyz: "
        "as `Authorization: Bearer TOKEN` (Prometheus: `authorization.credentials_file`), or as "
        "the password of a browser, with any user name.",
    )
    tls: Tls | None = Field(default=None, description="Serves https with these files.")
    hosts: tuple[Text, ...] = Field(
        default=(),
        description="Names by which it may be asked, besides addresses, names without a dot and "
        "the host of `url`. Others are refused: a web page could point its own name here.",
    )
    doctor: Duration = Field(
        default=timedelta(hours=1),
        description="Time between two looks of `backlogctl doctor` at each stream, for the page "
        "and for metrics.",
    )
    url: Text | None = Field(
        default=None,
        description="How people reach the page, for links in what is printed, such as "
        "`https://backlog.example.com`.",
    )
    groups: WatchedGroups = Field(
        default_factory=WatchedGroups, description="Which groups of a cluster are exported."
    )
    metrics: tuple[Literal["kafka_exporter", "kafka_lag_exporter"], ...] = Field(
        default=("kafka_exporter",),
        description="Names of other exporters that are served too, for dashboards that exist; "
        "`backlog_` names always are.",
    )
    granularity: Literal["topic", "partition"] = Field(
        default="topic",
        description="`topic`: partitions that are ok, of groups that are no stream, are exported "
        "together, without the label `partition`; `partition`: each by itself.",
    )
    max_partitions: int = Field(
        default=200_000,
        ge=1,
        description="How many partitions of groups are exported at most; what is left out is "
        "counted.",
    )
    hooks: dict[Label, Hook] = Field(
        default_factory=dict,
        description="Who is told when a stream's verdict changes, by name: "
        "[notifications](notifications.md).",
    )

    @model_validator(mode="after")
    def _check_order(self) -> Watch:
        if self.horizon < self.interval:
            raise ValueError("`horizon` must not be shorter than `interval`")
        if self.window < 2 * self.interval:
            raise ValueError("`window` must be at least twice `interval`: a trend needs samples")
        return self


class Guards(Section):
    """What is refused whatever a command says."""

    deny_topics: tuple[Text, ...] = Field(
        default=("__*",), description="Glob patterns of topics that no stream may have."
    )
    approval_expires: Duration = Field(
        default=timedelta(hours=24), description="How long an approval holds."
    )


class SourceLimits(Section):
    """What protects the database."""

    connections: Annotated[int, Field(gt=0, le=1000)] = Field(
        default=4, description="Connections opened at once."
    )
    fetch_size: Positive = Field(default=10_000, description="Rows fetched at a time.")
    statement_timeout: Duration = Field(
        default=timedelta(minutes=10), description="Longest time of one statement."
    )


class Source(Section):
    """A database that messages are rebuilt from, or that holds an outbox."""

    conn_id: Text | None = Field(
        default=None,
        description="In a file that only Airflow reads: the connection that gives `url`.",
    )
    url: Annotated[SecretStr, DatabaseUrl] = Field(
        description="SQLAlchemy URL of PostgreSQL, MariaDB, MySQL or SQLite. The "
        "password by reference: `postgresql+psycopg://app:${env:SHOP_PASSWORD}@db/shop`. It is "
        "percent-encoded as it is put in. A SQLite file is relative to the configuration file.",
    )
    timezone: Zone = Field(default="UTC", description="Time zone of time columns that have none.")
    java_driver: Literal["mariadb", "mysql"] = Field(
        default="mariadb",
        description="The Java driver that Spark reads MariaDB and MySQL with: MariaDB's, which is "
        "there, or `mysql`, Connector/J, whose jar you name in `spark.conf` under `spark.jars`.",
    )
    limits: SourceLimits = Field(
        default_factory=SourceLimits, description="What protects the database."
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: SecretStr) -> SecretStr:
        return check_database_url(value, SOURCE_DATABASES)

    def reveal_url(self) -> str:
        """The URL with its password: only for the call that connects."""
        return self.url.get_secret_value()


def check_database_url(value: SecretStr, known: Sequence[str] = DATABASES) -> SecretStr:
    """Refuses what is not the URL of one of these databases."""
    if problem := find_unsupported(value.get_secret_value(), known):
        raise ValueError(problem)
    return value


def find_unsupported(url: str, known: Sequence[str]) -> str:
    """Why it is not the URL of one of these databases; "" where it is."""
    found = re.match(r"([A-Za-z][\w]*)(\+\w+)?://", url)
    if not found:
        return "must be a database URL such as postgresql+psycopg://host/name"
    if found.group(1) not in known:
        return f"a database other than {', '.join(known[:-1])} or {known[-1]} {LATER}"
    return ""


class Cluster(RootModel[dict[str, str | SecretStr]]):
    """Client properties of one Kafka cluster, allow-listed (fault 61)."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _check_properties(cls, value: object, info: ValidationInfo) -> dict[str, str | SecretStr]:
        properties = _read_properties(value)
        for name, item in properties.items():
            if reason := check_property(name, item):
                raise fail_at((name,), reason)
            if name not in ALLOWED_PROPERTIES | SECRET_PROPERTIES:
                known = ALLOWED_PROPERTIES | SECRET_PROPERTIES
                raise fail_at((name,), describe_unknown("client property", name, known))
        if not properties.get("bootstrap.servers", "").strip():
            raise fail_at(("bootstrap.servers",), "is required")
        uses_sasl = properties.get("security.protocol", "").casefold().startswith("sasl")
        if uses_sasl and not {"sasl.mechanism", "sasl.mechanisms"} & properties.keys():
            raise ValueError("`sasl.mechanism` is required with this `security.protocol`")
        for name in FILE_PROPERTIES & properties.keys():
            # librdkafka's own word: look in the usual places.
            if properties[name] != "probe":
                properties[name] = str(anchor_path(properties[name], info))
        return {
            name: SecretStr(item) if name in SECRET_PROPERTIES else item
            for name, item in properties.items()
        }

    def client_properties(self) -> dict[str, str]:
        """The properties with their secrets: only for the call that makes a client."""
        return {
            name: item.get_secret_value() if isinstance(item, SecretStr) else item
            for name, item in self.root.items()
        }

    @property
    def bootstrap(self) -> str:
        return self.client_properties()["bootstrap.servers"]

    def reveal_secrets(self) -> tuple[str, ...]:
        return tuple(
            item.get_secret_value() for item in self.root.values() if isinstance(item, SecretStr)
        )
