"""The temporary topic: named, created, deleted, and its group set to the beginning.

Only a topic whose name and id are in the ledger for the recovery is ever deleted.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase

from backlogctl.clock import Deadline
from backlogctl.errors import KafkaFailure, Refused, UsageError
from backlogctl.fanout.temporary_settings import (
    agree_on_config,
    find_unsafe,
    make_temporary_config,
)
from backlogctl.kafka.admin import (
    TopicInfo,
    committed_offsets,
    connect,
    create_topic,
    delete_topic,
    describe_topic,
    list_offsets,
    set_group_offsets,
)
from backlogctl.kafka.clients import Admin, Connection
from backlogctl.kafka.errors import GroupActive, TopicMissing
from backlogctl.kafka.topics import find_topic_id
from backlogctl.ledger import Ledger, TemporaryTopic

RECOVERY = "recovery"
LONGEST_NAME = 249
CREATE_SECONDS = 60.0
_LEGAL = re.compile(rf"[A-Za-z0-9._-]{{1,{LONGEST_NAME}}}")
_ASK_SECONDS = 20.0
_TRY_SECONDS = 10.0
_PAUSE = 0.3
_ABSENT_SECONDS = 5.0


def name_temporary_topic(topic: str, recovery_id: str, word: str = RECOVERY) -> str:
    """`<topic>.recovery.<id>`, or with another word than `recovery`.
    Raises UsageError: the name is too long for Kafka, or has characters that it does not take.
    """
    name = f"{topic}.{word}.{recovery_id}"
    if not _LEGAL.fullmatch(name):
        raise UsageError(
            f"its temporary topic would be {name}, which Kafka does not take: at most "
            f"{LONGEST_NAME} letters, digits, dots, dashes and underscores",
            subject=f"topic {topic}",
        )
    return name


def create_temporary_topic(
    ledger: Ledger,
    connection: Connection,
    *,
    recovery_id: str,
    cluster: str,
    source: TopicInfo,
    partitions: int,
    deadline: Deadline | None = None,
    word: str = RECOVERY,
    keep_ms: int | None = None,
) -> TemporaryTopic:
    """Creates the recovery's temporary topic, or finds the one that it made before.

    It is announced in the ledger first. A topic of this name that was announced, and never had a
    record, is that of a run that crashed before it recorded the id.

    Args:
        word: of its name. keep_ms: see `temporary_settings`.

    Returns:
        The topic, with its id.

    Raises:
        Refused: a topic of this name is not ours, or ours was deleted or made anew.
        KafkaFailure: it could not be created until the deadline.
    """
    admin, limit = connect(connection), deadline or Deadline(CREATE_SECONDS)
    name = name_temporary_topic(source.name, recovery_id, word)
    # 1. What the ledger knows.
    known = ledger.temporary_topics.get(recovery_id)
    if known is None:
        _await_absence(admin, name, limit)
    known = ledger.temporary_topics.announce(recovery_id, cluster, name, partitions)
    if known.deleted_at is not None:
        raise Refused(
            "this recovery's temporary topic was deleted already",
            subject=f"topic {name}",
            hint="plan again",
        )
    if known.topic_id is not None:
        # 2. Made before.
        _await_known(admin, name, known.topic_id, limit)
        return known
    # 3. Create, or find it empty and as we make it.
    topic_id = create_empty_topic(admin, source, name, partitions, limit, keep_ms)
    # 4. The id, by which it is known from here on.
    return ledger.temporary_topics.record_id(recovery_id, topic_id)


def create_empty_topic(
    connection: Connection,
    source: TopicInfo,
    name: str,
    partitions: int,
    deadline: Deadline | None = None,
    keep_ms: int | None = None,
) -> str:
    """Creates a topic like a temporary one, or finds one that never had a record; its id.

    Raises:
        Refused: a topic of this name is there that is not as we make it.
        KafkaFailure: it could not be created until the deadline.
    """
    admin, limit = connect(connection), deadline or Deadline(CREATE_SECONDS)
    config = wanted = make_temporary_config(source, keep_ms)
    with suppress(KafkaFailure):  # it cannot be asked; the creation itself tells
        config = agree_on_config(admin, source, name, partitions, keep_ms, limit.part(_ASK_SECONDS))
    topic_id = _create(admin, name, partitions, source.replication, config, limit)
    _refuse_foreign(admin, source, name, topic_id, partitions, wanted, limit)
    return topic_id


def delete_empty_topic(
    connection: Connection,
    name: str,
    topic_id: str,
    partitions: int,
    deadline: Deadline | None = None,
) -> None:
    """Deletes a topic of `create_empty_topic`.
    Raises Refused: it has had a record, or is another one by its id; it stays.
    """
    admin, limit = connect(connection), deadline or Deadline(CREATE_SECONDS)
    if any(list_offsets(admin, name, range(partitions), "latest", deadline=limit).values()):
        raise Refused(
            "it was not deleted: somebody wrote into it",
            subject=f"topic {name}",
            hint="see who; delete it by hand",
        )
    delete_topic(admin, name, topic_id, limit)


def find_changed_settings(
    connection: Connection, name: str, deadline: Deadline | None = None
) -> dict[str, tuple[str, str]]:
    """Settings of a temporary topic that somebody changed so that messages may be deleted, or get
    another time: what they are, and what we make them.
    """
    found = describe_topic(connection, name, deadline or Deadline(CREATE_SECONDS))
    ours = make_temporary_config(found)
    # Of those that only keep something from being written, any value is its own.
    unsafe = find_unsafe({**ours, **found.config}, ours, found.config)
    return {key: (found.config[key], ours[key]) for key in unsafe}


def find_deleted(
    connection: Connection, name: str, partitions: int, deadline: Deadline | None = None
) -> dict[int, int]:
    """Partitions of a temporary topic that begin above 0: somebody deleted what was before, since
    nothing in it expires.
    """
    limit = deadline or Deadline(CREATE_SECONDS)
    starts = list_offsets(connection, name, range(partitions), "earliest", deadline=limit)
    return {number: at for number, at in starts.items() if at > 0}


def start_recovery_group(
    connection: Connection,
    *,
    group: str,
    topic: str,
    partitions: int,
    deadline: Deadline | None = None,
) -> tuple[int, ...]:
    """Sets the group to offset 0 on every partition where it has no commit; before any consumer.

    Without a commit a consumer's own default decides, and skips what is there; also where somebody
    deleted what follows its commit: then it begins at what is left. No other commit is moved.

    Returns:
        The partitions that were set.

    Raises:
        GroupActive: some have no commit, and the group has members; nothing was set.
    """
    admin, limit = connect(connection), deadline or Deadline(CREATE_SECONDS)
    commits = committed_offsets(admin, group, topic, range(partitions), limit, require_stable=True)
    missing = {number: 0 for number, at in commits.items() if at is None}
    if missing:
        set_group_offsets(admin, group, topic, missing, limit, new_topic=True)
    starts = find_deleted(admin, topic, partitions, limit)
    behind = {number: at for number, at in starts.items() if (commits[number] or 0) < at}
    if behind:
        with suppress(GroupActive):  # its members have gone on by themselves
            set_group_offsets(admin, group, topic, behind, limit)
    return tuple(sorted({*missing, *behind}))


def delete_temporary_topic(
    ledger: Ledger,
    connection: Connection,
    *,
    recovery_id: str,
    cluster: str,
    source: TopicInfo,
    deny_topics: Iterable[str],
    is_drained: Callable[[], bool],
    deadline: Deadline | None = None,
    word: str = RECOVERY,
    keep_ms: int | None = None,
) -> None:
    """Deletes the recovery's temporary topic; one that is gone, or was never made, is fine.

    Args:
        source: the topic that was expanded.
        deny_topics: glob patterns of topics that are never touched.
        is_drained: whether no data record of it is unread; asked only when all else is right.
        word, keep_ms: what it was made with.

    Raises:
        Refused: its name or id is not what the ledger has, or it is not drained; it stays.
    """
    admin, limit = connect(connection), deadline or Deadline(CREATE_SECONDS)
    # 1. It is ours by the ledger.
    known = ledger.temporary_topics.get(recovery_id)
    if known is None or known.deleted_at is not None:
        return
    _refuse_wrong_name(known, cluster, source.name, deny_topics, word)
    # 2. It is ours by its id.
    found = _find_settled_id(admin, known.name, limit)
    if found is None:
        ledger.temporary_topics.mark_deleted(recovery_id)
        return
    if known.topic_id is None:  # it crashed between the creation and the record
        if not source.config:  # of a source that is gone, or was not asked
            source = replace(source, config=describe_topic(admin, known.name, limit).config)
        config = make_temporary_config(source, keep_ms)
        _refuse_foreign(admin, source, known.name, found, known.partitions, config, limit)
        known = ledger.temporary_topics.record_id(recovery_id, found)
    if found != known.topic_id:
        raise _refuse_id(known.name, found, known.topic_id)
    # 3. Nothing in it is unread: it exists nowhere else any more.
    if not is_drained():
        raise Refused(
            "it was not deleted: messages in it are unread",
            subject=f"topic {known.name}",
            hint="run the recovery again",
        )
    # 4. Gone.
    assert known.topic_id is not None
    delete_topic(admin, known.name, known.topic_id, limit)
    ledger.temporary_topics.mark_deleted(recovery_id)


def _await_absence(admin: Admin, name: str, limit: Deadline) -> None:
    """A topic that was just deleted is still in some brokers' metadata (fault 17)."""
    wait = Deadline(limit.remaining(_TRY_SECONDS))
    while find_topic_id(admin, name, limit) is not None:
        if wait.expired:
            raise Refused(
                "a topic of this name is there already, and this recovery did not make it",
                subject=f"topic {name}",
                hint="look who did; nothing was changed",
            )
        time.sleep(wait.remaining(_PAUSE))


def _await_known(admin: Admin, name: str, topic_id: str, limit: Deadline) -> None:
    """A broker may not know the topic yet that another one has made (fault 17)."""
    wait = Deadline(limit.remaining(_TRY_SECONDS))
    while (found := find_topic_id(admin, name, limit)) != topic_id:
        if wait.expired and found is None:
            raise Refused(
                "this recovery's temporary topic is gone: somebody deleted it",
                subject=f"topic {name}",
                hint="what was relayed into it and not handled is lost there; its source offsets "
                "are in the recovery's record",
            )
        if wait.expired:
            raise _refuse_id(name, found, topic_id)
        time.sleep(wait.remaining(_PAUSE))


def _create(
    admin: Admin,
    name: str,
    partitions: int,
    replication: int,
    config: Mapping[str, str],
    limit: Deadline,
) -> str:
    while True:
        try:
            topic_id = create_topic(
                admin,
                name,
                partitions=partitions,
                replication=replication,
                config=config,
                deadline=Deadline(limit.remaining(_TRY_SECONDS)),
                exist_ok=True,
            )
            # A broker that is behind may still show one that is being deleted.
            time.sleep(limit.remaining(_PAUSE))
            if find_topic_id(admin, name, limit) == topic_id:
                return topic_id
        except KafkaFailure as error:
            passing = error.retryable or isinstance(error, TopicMissing)
            if limit.expired or not passing:
                raise
        if limit.expired:
            raise KafkaFailure(
                f"it did not settle within {limit.seconds:g} s: its id changes",
                subject=f"topic {name}",
                hint="try again",
                retryable=True,
            )


def _refuse_foreign(
    admin: Admin,
    source: TopicInfo,
    name: str,
    topic_id: str,
    partitions: int,
    config: Mapping[str, str],
    limit: Deadline,
) -> None:
    """Refuses a topic with settings that are not as safe as ours, or that ever had a record."""
    found = describe_topic(admin, name, limit)
    differs = find_unsafe(found.config, config, source.config)
    if found.topic_id != topic_id or found.partitions != partitions or differs:
        why = f"its {', '.join(differs)} differ" if differs else "it is not as we make it"
    elif any(list_offsets(admin, name, range(found.partitions), "latest", deadline=limit).values()):
        why = "there are records in it"
    else:
        return
    raise Refused(
        f"a topic of this name is there, and is not the one of this recovery: {why}",
        subject=f"topic {name}",
        hint="look who made it; it was left alone",
    )


def _refuse_wrong_name(
    known: TemporaryTopic, cluster: str, source: str, deny_topics: Iterable[str], word: str
) -> None:
    """Fault 60: the ledger alone is not trusted either."""
    subject = f"topic {known.name}"
    if known.cluster != cluster:
        raise Refused(f"it is on cluster {known.cluster}, not {cluster}", subject=subject)
    if known.name != name_temporary_topic(source, known.recovery_id, word):
        raise Refused(
            f"it is not the name of a temporary topic of {source}; it was left alone",
            subject=subject,
            hint="somebody changed the ledger: see who",
        )
    for pattern in deny_topics:
        if fnmatchcase(known.name, pattern):
            raise Refused(
                f"topics like `{pattern}` are never deleted",
                subject=subject,
                hint="see `guards.deny_topics`",
            )


def _refuse_id(name: str, found: str | None, topic_id: str | None) -> Refused:
    return Refused(
        f"a topic of this name has id {found}, the one we made has {topic_id}; it was left alone",
        subject=f"topic {name}",
        hint="somebody deleted ours and made another",
    )


def _find_settled_id(admin: Admin, name: str, limit: Deadline) -> str | None:
    """None only where it stays away for a while: one broker may have stale metadata."""
    wait = Deadline(limit.remaining(_ABSENT_SECONDS))
    while (found := find_topic_id(admin, name, limit)) is None and not wait.expired:
        time.sleep(wait.remaining(_PAUSE))
    return found
