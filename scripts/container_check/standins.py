"""What takes the place of others' images: the same programs, of Debian and of Maven Central."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HOME = Path(tempfile.gettempdir()) / "backlogctl-check"
_PATH = "/usr/lib/postgresql/15/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LOG4J = """\
Configuration:
  Appenders:
    Console: {name: STDOUT, PatternLayout: {pattern: "[%d] %p %m (%c)%n"}}
  Loggers:
    Root: {level: INFO, AppenderRef: [{ref: STDOUT}]}
    Logger: [{name: kafka, level: INFO}]
"""


@dataclass(frozen=True)
class Standin:
    """Who runs what; `entry` does what the image's own entry point does."""

    user: str
    entry: Callable[[Sequence[str]], list[str]]
    mounts: Callable[[], dict[Path, str]] | None = None
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": _PATH, "LANG": "C.UTF-8"})


def enter_kafka(_: Sequence[str]) -> list[str]:
    """The image's own class turns KAFKA_... into server.properties and formats the disk."""
    classes = "-cp '/opt/kafka/libs/*'"
    setup = "--default-configs-dir /etc/kafka/docker --mounted-configs-dir /tmp/mounted"
    return [
        "sh",
        "-ec",
        "mkdir -p /tmp/mounted /tmp/config;"
        f"java {classes} kafka.docker.KafkaDockerWrapper setup {setup}"
        " --final-configs-dir /tmp/config;"
        f"exec java $KAFKA_HEAP_OPTS {classes} kafka.Kafka /tmp/config/server.properties",
    ]


def mount_kafka() -> dict[Path, str]:
    """Kafka's jars, and the defaults that its class starts from."""
    from sandbox.jars import ensure_kafka_jars

    defaults = HOME / "kafka"
    defaults.mkdir(parents=True, exist_ok=True)
    (defaults / "server.properties").write_text("")
    for name in ("log4j2.yaml", "tools-log4j2.yaml"):
        (defaults / name).write_text(_LOG4J)
    return {ensure_kafka_jars()[0].parent: "/opt/kafka/libs", defaults: "/etc/kafka/docker"}


def enter_postgres(_: Sequence[str]) -> list[str]:
    """As the image's entry point: the scripts of docker-entrypoint-initdb.d, once."""
    return [
        "bash",
        "-ec",
        "export PGDATA=/var/lib/postgresql/data POSTGRES_USER=postgres PGHOST=/tmp;"
        "initdb --username=postgres --pwfile=$POSTGRES_PASSWORD_FILE --auth-host=scram-sha-256"
        " --auth-local=trust;"
        'pg_ctl -w start -o "-c listen_addresses= -c unix_socket_directories=/tmp";'
        "for script in /docker-entrypoint-initdb.d/*.sh; do . $script; done;"
        "pg_ctl -w stop;"
        "echo 'host all all all scram-sha-256' >>$PGDATA/pg_hba.conf;"
        "exec postgres -c listen_addresses=* -c unix_socket_directories=/tmp",
    ]


def enter_prometheus(arguments: Sequence[str]) -> list[str]:
    """Its command line is the service's."""
    return ["prometheus", *arguments]


STANDINS = {
    "apache/kafka": Standin("1000", enter_kafka, mount_kafka),
    "postgres": Standin("postgres", enter_postgres),
    "prom/prometheus": Standin("nobody:nogroup", enter_prometheus),
}
