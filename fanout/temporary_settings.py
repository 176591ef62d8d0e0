"""The temporary topic's settings: what is wanted, and what of it the cluster takes.

Clusters refuse settings, as managed ones do: by their limits, or as nobody but they set them. What
would hold is asked before anything is changed (CreateTopics that only validates; it answers with
all settings of the topic, KIP-525, Kafka 2.4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from backlogctl.clock import Deadline
from backlogctl.errors import Refused
from backlogctl.kafka.admin import TopicInfo, connect
from backlogctl.kafka.clients import Connection
from backlogctl.kafka.raw_client import keep_clients
from backlogctl.kafka.topics import CreationAnswer, ask_creation

LARGEST_MESSAGE = 32 * 2**20
_FOREVER = "9223372036854775807"
_SIZE, _COMPRESSION = "max.message.bytes", "compression.type"
_ACKS, _AHEAD = "min.insync.replicas", "message.timestamp.after.max.ms"
# Wished, not needed: these come first where something must go.
_WISHED = (_COMPRESSION, _ACKS, _SIZE)
# Not below the source's. A message that a broker took is not further ahead of the clock later.
_AT_LEAST = frozenset({_SIZE, _ACKS, _AHEAD})
_ASK_SECONDS = 30.0


def make_temporary_config(source: TopicInfo, keep_ms: int | None = None) -> dict[str, str]:
    """Settings with which nothing of the temporary topic is deleted, refused or given a new time.

    Each is set by name, so that the brokers' own limits do not hold (fault 67).

    Args:
        keep_ms: after so long its messages are deleted after all.
    """
    config = {
        "cleanup.policy": "delete",
        "retention.ms": str(-1 if keep_ms is None else keep_ms),
        "retention.bytes": "-1",
        "message.timestamp.type": "CreateTime",
        "message.timestamp.before.max.ms": _FOREVER,
        _AHEAD: _FOREVER,
        _COMPRESSION: "producer",
        _SIZE: str(max(int(source.config.get(_SIZE, "0")), LARGEST_MESSAGE)),
    }
    if _ACKS in source.config:
        config[_ACKS] = source.config[_ACKS]
    # Brokers before 3.6 know neither, and refuse a topic with settings that they do not know.
    if "message.timestamp.before.max.ms" not in source.config:
        del config["message.timestamp.before.max.ms"], config[_AHEAD]
        config["message.timestamp.difference.max.ms"] = _FOREVER
    return config


def find_unsafe(
    found: Mapping[str, str], wanted: Mapping[str, str], source: Mapping[str, str]
) -> list[str]:
    """The settings with which something would be deleted, refused, given a new time, or be on fewer
    replicas than in the source.

    Args:
        found: what is in force; a setting that is not there is unknown.
        wanted: of `make_temporary_config`.
        source: what is in force for the source.
    """
    return [name for name in wanted if not _is_safe(name, found.get(name), wanted, source)]


def _is_safe(
    name: str, found: str | None, wanted: Mapping[str, str], source: Mapping[str, str]
) -> bool:
    if found == wanted[name] or name == _COMPRESSION:
        return True
    return (
        found is not None
        and name in _AT_LEAST
        and name in source
        and int(found) >= int(source[name])
    )


def agree_on_config(
    connection: Connection,
    source: TopicInfo,
    name: str,
    partitions: int,
    keep_ms: int | None = None,
    deadline: Deadline | None = None,
) -> dict[str, str]:
    """As many settings of `make_temporary_config` as the cluster takes; creates nothing.

    One that it refuses is left out where its own value is as safe, and the size of messages is what
    the source allows.

    Raises:
        Refused: the cluster would not create it; or not with what it needs.
        KafkaFailure: the cluster cannot be asked.
    """
    limit, wanted = deadline or Deadline(_ASK_SECONDS), make_temporary_config(source, keep_ms)
    ask = partial(
        ask_creation,
        connect(connection).properties,
        name,
        partitions=partitions,
        replication=source.replication,
        deadline=limit,
    )
    with keep_clients():
        config, answer = _give_up(ask, source, wanted)
        if answer.refused:
            raise Refused(
                f"the cluster would not create the temporary topic: {answer.refused}",
                subject=f"topic {name}",
                hint="its operators say what it takes; no topic was made",
            )
    # What it says holds: a cluster may pass over what it was asked for.
    in_force = {**config, **answer.config}
    if unsafe := find_unsafe(in_force, wanted, source.config):
        told = ", ".join(
            f"{one} ({in_force.get(one, 'its own value is unknown')}, needed {wanted[one]})"
            for one in unsafe
        )
        raise Refused(
            f"the cluster lets nobody set what the temporary topic needs: {told}",
            subject=f"topic {name}",
            hint="have its operators allow that; no topic was made",
        )
    return config


def _give_up(
    ask: Callable[..., CreationAnswer], source: TopicInfo, wanted: Mapping[str, str]
) -> tuple[dict[str, str], CreationAnswer]:
    """Leaves out one after the other until it is taken; then takes back what was not the reason."""
    config, left = dict(wanted), list[tuple[str, str]]()
    answer = ask(config=config)
    size = source.config.get(_SIZE, wanted[_SIZE])
    ways: list[tuple[str, str | None]] = [(_SIZE, size)] if size != wanted[_SIZE] else []
    ordered = [*_WISHED, *(name for name in wanted if name not in _WISHED)]
    ways += [(name, None) for name in ordered if name in wanted]
    for name, value in ways:
        if not answer.is_about_settings:
            break
        left.append((name, config.pop(name)))
        if value is not None:
            config[name] = value
        answer = ask(config=config)
    for name, value in reversed(left[:-1]) if not answer.refused else ():
        more = config | {name: value}
        if not (again := ask(config=more)).refused:
            config, answer = more, again
    return config, answer


def say_given_up(source: TopicInfo, config: Mapping[str, str]) -> str:
    """What the cluster did not take of the settings, for people; "" where it took all."""
    wanted = make_temporary_config(source)
    own = [name for name in wanted if name not in config and name != _SIZE]
    told = []
    if (size := config.get(_SIZE)) != wanted[_SIZE]:
        is_ = f"{size}, as of {source.name}," if size else "the cluster's own,"
        told.append(
            f"{_SIZE} is {is_} and not {wanted[_SIZE]}: a larger message, with the few headers "
            "that a copy has more, would stop the relay"
        )
    if own:
        told.append(
            f"{', '.join(own)} stay the cluster's own: nothing is deleted, or given a new time, by "
            "them"
        )
    return "the cluster refuses settings of the temporary topic: " + "; ".join(told) if told else ""
