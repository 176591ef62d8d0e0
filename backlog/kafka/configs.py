"""Topic settings: what a topic sets itself, what is in force, and changing single ones."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)

from backlog.clock import Deadline
from backlog.errors import KafkaFailure
from backlog.kafka.calls import Connection, ask, connect, retry_transient, wait_for
from backlog.kafka.clients import Admin
from backlog.kafka.topics import DEFAULT_SECONDS

_PAUSE = 0.1


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """`value` is in force; `override` is what the topic itself sets, None where it does not."""

    value: str | None
    override: str | None


def read_topic_settings(
    connection: Connection, topic: str, names: Iterable[str], deadline: Deadline | None = None
) -> dict[str, TopicSetting]:
    """The settings named, as they are in force and as the topic sets them.

    Raises:
        TopicMissing, ClusterUnreachable, KafkaFailure: also for a name the broker does not know.
    """
    admin, limit = connect(connection), deadline or Deadline(DEFAULT_SECONDS)
    subject, doing = f"topic {topic}", "read its settings"
    resource = ConfigResource(ResourceType.TOPIC, topic)

    def call() -> Any:
        futures = ask(admin, admin.describe_configs, subject, doing, limit, [resource])
        return wait_for(admin, futures[resource], subject, doing, limit)

    entries = retry_transient(admin, limit, call)
    wanted = list(names)
    unknown = sorted(set(wanted) - set(entries))
    if unknown:
        raise KafkaFailure(
            f"could not {doing}: the broker knows no setting {', '.join(unknown)}", subject=subject
        )
    return {name: _to_setting(entries[name]) for name in wanted}


def read_topic_overrides(
    connection: Connection, topic: str, names: Iterable[str], deadline: Deadline | None = None
) -> dict[str, str | None]:
    """What the topic itself sets; None where it does not. Errors as `read_topic_settings`."""
    settings = read_topic_settings(connection, topic, names, deadline)
    return {name: setting.override for name, setting in settings.items()}


def alter_topic_config(
    connection: Connection,
    topic: str,
    changes: Mapping[str, str | None],
    deadline: Deadline | None = None,
) -> None:
    """Sets single settings of a topic, leaves the others, and reads them back.

    Args:
        changes: the new values; None unsets, so that the broker's own value is in force again.

    Raises:
        KafkaFailure: it was refused, or what reads back is not what was set.
        TopicMissing, ClusterUnreachable.
    """
    if not changes:
        return
    admin, limit = connect(connection), deadline or Deadline(DEFAULT_SECONDS)
    subject, doing = f"topic {topic}", "change its settings"
    entries = [_make_entry(name, value) for name, value in changes.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)

    def call() -> None:
        verb = admin.incremental_alter_configs
        futures = ask(admin, verb, subject, doing, limit, [resource])
        for future in futures.values():
            wait_for(admin, future, subject, doing, limit)

    retry_transient(admin, limit, call)
    _await_changes(admin, topic, changes, limit)


def _await_changes(
    admin: Admin, topic: str, changes: Mapping[str, str | None], limit: Deadline
) -> None:
    """The controller has them first; the broker that is asked learns of them a little later."""
    while True:
        back = read_topic_overrides(admin, topic, changes, limit)
        wrong = {name: back[name] for name, value in changes.items() if back[name] != value}
        if not wrong:
            return
        if limit.expired:
            raise KafkaFailure(
                f"set its settings, but {wrong} reads back",
                subject=f"topic {topic}",
                hint="something else changes them too; look who does",
                retryable=True,
            )
        time.sleep(limit.remaining(_PAUSE))


def _to_setting(entry: Any) -> TopicSetting:
    own = int(entry.source) == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return TopicSetting(entry.value, entry.value if own else None)


def _make_entry(name: str, value: str | None) -> ConfigEntry:
    if value is None:
        return ConfigEntry(name, "", incremental_operation=AlterConfigOpType.DELETE)
    return ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
