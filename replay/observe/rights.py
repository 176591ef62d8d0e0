"""What the tool's principal must be allowed, by job; asked before anything is touched.

One list for `backlogctl acl`, for the guard of every plan and run, and for docs/permissions.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from backlogctl.clock import Deadline
from backlogctl.config import Config, Stream
from backlogctl.errors import Refused
from backlogctl.fanout.temporary_topic import name_temporary_topic
from backlogctl.formats import format_plural
from backlogctl.kafka.capabilities import find_absent
from backlogctl.kafka.clients import Properties
from backlogctl.kafka.commit_log import COMMIT_LOG
from backlogctl.kafka.rights import (
    CLUSTER_NAME,
    Operation,
    Resource,
    Right,
    make_grants,
    read_rights,
)
from backlogctl.replay.engine.kind import Registry, Workspace

SEE, WATCH, HOLD, DOCTOR, AIRFLOW = "see", "watch", "hold", "doctor", "airflow"
TRANSACTIONS = "transactions"
QUOTA = "quota"  # beside what writes, where `limits.quota_share` is set
# Of transactional ids: all of them, and a name that stands for any.
_EVERY, _ANY = "*", "backlogctl:any"
# Stands for the id of a recovery that is not planned yet.
SOME_ID = "r-20260101-0001"
_ID = Resource.TRANSACTIONAL_ID
_SECONDS = 30.0


# Job or part of one, resource, name, operation, purpose. A name that ends with a star is a prefix.
# What is only looked at, on the cluster, of transactions or for `watch` alone, can be missing: then
# something stays unknown, and is said.
_TABLE = (
    ("see", Resource.CLUSTER, CLUSTER_NAME, "DESCRIBE", "list all groups and read the disks"),
    ("doctor", Resource.CLUSTER, CLUSTER_NAME, "DESCRIBE_CONFIGS", "read the brokers' settings"),
    ("see raise", Resource.TOPIC, "{topic}", "DESCRIBE", "read its offsets"),
    ("see raise", Resource.TOPIC, "{topic}", "DESCRIBE_CONFIGS", "read its retention"),
    ("see", Resource.TOPIC, "{topic}", "READ", "read how old the oldest unread message is"),
    ("who", _ID, "{id}", "DESCRIBE", "name who left a transaction open"),
    ("fence", _ID, "{id}", "WRITE", "abort a transaction that its coordinator knows"),
    ("mark", Resource.CLUSTER, CLUSTER_NAME, "ALTER", "abort a transaction that hangs"),
    ("raise", Resource.TOPIC, "{topic}", "ALTER_CONFIGS", "raise its retention"),
    ("see", Resource.GROUP, "{group}", "DESCRIBE", "read its members and committed offsets"),
    ("watch", Resource.TOPIC, COMMIT_LOG, "DESCRIBE", "find where groups' commits are written"),
    (
        *("watch", Resource.TOPIC, COMMIT_LOG, "READ"),
        "see each commit of the group; without it all is known by samples only",
    ),
    ("offload", Resource.TOPIC, "{topic}", "DELETE", "delete records that are archived"),
    ("offload", Resource.TOPIC, "{topic}", "ALTER_CONFIGS", "lower its segment.ms for seconds"),
    ("offload", Resource.TOPIC, "{topic}", "WRITE", "end its segments, so that space is freed"),
    ("offload", _ID, "{prefix}:roll:{topic}", "DESCRIBE", "find its coordinator"),
    ("offload", _ID, "{prefix}:roll:{topic}", "WRITE", "write a transaction without messages"),
    ("offload", Resource.GROUP, "{group}", "READ", "commit where its consumers go on"),
    ("expand", Resource.GROUP, "{group}", "READ", "commit what was relayed"),
    ("expand", Resource.TOPIC, "{topic}.recovery.*", "CREATE", "make the temporary topic"),
    ("expand", Resource.TOPIC, "{topic}.recovery.*", "DESCRIBE", "find the temporary topic"),
    (
        *("expand", Resource.TOPIC, "{topic}.recovery.*", "DESCRIBE_CONFIGS"),
        "check the temporary topic's settings",
    ),
    ("expand", Resource.TOPIC, "{topic}.recovery.*", "WRITE", "relay into the temporary topic"),
    (
        *("expand", Resource.TOPIC, "{topic}.recovery.*", "READ"),
        "commit the recovery group's offsets on it",
    ),
    ("expand", Resource.TOPIC, "{topic}.recovery.*", "DELETE", "delete the temporary topic"),
    (
        *("keep", Resource.TOPIC, "{topic}.recovery.*", "ALTER_CONFIGS"),
        "set the temporary topic's settings again where somebody changes them",
    ),
    (
        *("expand", Resource.GROUP, "{group}.recovery.*", "DESCRIBE"),
        "see how far the recovery's consumers are",
    ),
    (
        *("expand", Resource.GROUP, "{group}.recovery.*", "READ"),
        "commit where the recovery's consumers begin, and the relay's position",
    ),
    ("expand", Resource.GROUP, "{group}.recovery.*", "DELETE", "delete the recovery's group"),
    ("expand", _ID, "{prefix}:relay:{topic}.*", "DESCRIBE", "find their coordinator"),
    ("expand", _ID, "{prefix}:relay:{topic}.*", "WRITE", "relay each message once"),
    (QUOTA, Resource.CLUSTER, CLUSTER_NAME, "DESCRIBE_CONFIGS", "keep to a share of its quota"),
    ("letters", Resource.TOPIC, "{source}", "DESCRIBE", "read its offsets"),
    ("letters", Resource.TOPIC, "{source}", "READ", "read the dead letters"),
    ("other", Resource.TOPIC, "{target}", "DESCRIBE", "read its offsets"),
    ("other", Resource.TOPIC, "{target}", "READ", "read back what was sent"),
    ("put", Resource.TOPIC, "{target}", "WRITE", "put messages back"),
    ("send", Resource.TOPIC, "{ledger}", "DESCRIBE", "read what was put back before"),
    (
        "send",
        Resource.TOPIC,
        "{ledger}",
        "DESCRIBE_CONFIGS",
        "check that the Kafka ledger is compacted",
    ),
    ("send", Resource.TOPIC, "{ledger}", "READ", "read what was put back before"),
    ("create", Resource.TOPIC, "{ledger}", "CREATE", "make the Kafka ledger where it is missing"),
    ("send", Resource.TOPIC, "{ledger}", "WRITE", "record what was put back"),
    ("send", _ID, "{prefix}.{target}.*", "DESCRIBE", "find their coordinator"),
    ("send", _ID, "{prefix}.{target}.*", "WRITE", "put each message back once"),
    ("rehearse", Resource.TOPIC, "{topic}.rehearsal.*", "CREATE", "make a rehearsal's topic"),
    ("rehearse", Resource.TOPIC, "{topic}.rehearsal.*", "DESCRIBE", "find a rehearsal's topic"),
    (
        *("rehearse", Resource.TOPIC, "{topic}.rehearsal.*", "DESCRIBE_CONFIGS"),
        "check a rehearsal's topic",
    ),
    ("rehearse", Resource.TOPIC, "{topic}.rehearsal.*", "WRITE", "send a rehearsal's messages"),
    ("rehearse", Resource.TOPIC, "{topic}.rehearsal.*", "READ", "read a rehearsal back"),
    ("rehearse", Resource.TOPIC, "{topic}.rehearsal.*", "DELETE", "delete a rehearsal's topic"),
)


def select_rights(
    parts: str, stream: Stream, recovery_id: str = SOME_ID, optional: str = "", **names: str
) -> tuple[Right, ...]:
    """The rows of the table of these parts.

    Args:
        parts: separated by spaces: `see`, `watch` (beside it), `who` (names of producers), `raise`
            (retention), `doctor`; to abort transactions `fence` (by its coordinator) and `mark`; of
            recoveries `offload`, `expand`, `keep` (its topic's settings), `letters` (read dead
            letters), `put` (send to a topic that is there), `other` (another topic than the
            stream's), `send` (in transactions, with the Kafka ledger), `create` (that ledger),
            `rehearse`.
        recovery_id: ends the name that is asked about where a rule is on a prefix.
        optional: a part of them that a run may not need.
        names: `prefix` of transactional ids, `ledger`, `target` and `source` topics; `id` of a
            producer, without it all.
    """
    chosen = set(parts.split())
    if stream.limits.share is not None and chosen & {"expand", "send"}:
        chosen.add(QUOTA)
    names = {"topic": stream.topic, "group": stream.group, "id": _EVERY, **names}
    rights = []
    for jobs, resource, template, operation, purpose in _TABLE:
        if not chosen.intersection(jobs.split()):
            continue
        name, star = template.removesuffix("*").format(**names), template.endswith("*")
        looks = operation.startswith("DESCRIBE") and (jobs == "who" or resource is Resource.CLUSTER)
        needed = (not looks or jobs == QUOTA) and jobs not in (WATCH, optional)
        asked = _ANY if name == _EVERY else ""
        if star and resource is Resource.TOPIC:
            asked = name_temporary_topic(stream.topic, recovery_id, template.split(".")[1])
        elif star:
            asked = name + ("0" if resource is _ID else recovery_id)
        right = Right(resource, name, Operation[operation], purpose, star, asked, needed)
        rights.append(right)
    return tuple(rights)


def list_seeing(stream: Stream) -> tuple[Right, ...]:
    """To look at a stream: lag, losses, and how long there is."""
    return select_rights(SEE, stream)


def list_jobs(kinds: Registry) -> tuple[str, ...]:
    """The jobs of `backlogctl acl`."""
    return (SEE, WATCH, HOLD, TRANSACTIONS, *kinds.names(), DOCTOR, AIRFLOW)


def list_rights(kinds: Registry, job: str, config: Config, stream: Stream) -> tuple[Right, ...]:
    """What a job on a stream needs; Airflow's tasks do all of them."""
    parts = {
        SEE: "see who",
        WATCH: "see who watch",
        HOLD: "see raise",
        TRANSACTIONS: "see who fence mark",
        DOCTOR: "see who doctor",
    }
    if job in parts:
        return select_rights(parts[job], stream)
    if job != AIRFLOW:
        return kinds.get(job).list_rights(config, stream, SOME_ID)
    every = [*select_rights(parts[HOLD], stream)]
    for kind in kinds:
        every += kind.list_rights(config, stream, SOME_ID)
    found: dict[tuple[object, ...], Right] = {}
    for right in every:  # two kinds may need the same one, each for its own purpose
        found.setdefault((right.resource, right.name, right.prefixed, right.operation), right)
    return tuple(found.values())


def require_rights(workspace: Workspace, stream: Stream, rights: Sequence[Right]) -> list[str]:
    """Refuses work that would stop in the middle for want of a right.

    Returns:
        Warnings: rights that could not be asked.

    Raises:
        Refused: names what is missing, and the lines that grant it; or a request that the cluster
            does not take.
        ClusterUnreachable, KafkaFailure.
    """
    properties = workspace.properties(stream)
    found = read_rights(properties, rights, Deadline(_SECONDS))
    if needed := [right for right in found.missing if right.needed]:
        lines = make_grants(found.missing, find_principal(properties), properties)
        raise Refused(
            f"the tool misses {format_plural(len(needed), 'right')}: {describe_rights(needed)}",
            subject=f"stream {stream.name}",
            # A run may have begun earlier: what it changed then stands in `standing`.
            hint="who administers the cluster grants them with\n  " + "\n  ".join(lines),
        )
    _require_requests(stream, properties, rights)
    warnings = [
        f"the tool may not {right} (to {right.purpose}): what needs that stays unknown"
        for right in found.missing
    ]
    if found.unknown:
        warnings += [
            f"whether the tool may do all that is needed is unknown: {found.reason}; a right that "
            "is missing shows only when it is used"
        ]
    return warnings


def _require_requests(stream: Stream, properties: Properties, rights: Sequence[Right]) -> None:
    """What is allowed must be there, too: managed clusters leave requests out."""
    used: set[str] = set()
    for right in (right for right in rights if right.needed):
        match right.resource, right.operation:
            case Resource.TRANSACTIONAL_ID, Operation.WRITE:
                used |= {"InitProducerId", "AddPartitionsToTxn", "EndTxn"}
            case Resource.GROUP, Operation.READ if right.prefixed:  # the relay's own
                used |= {"AddOffsetsToTxn", "TxnOffsetCommit"}
            case Resource.CLUSTER, Operation.ALTER:
                used.add("WriteTxnMarkers")
            case Resource.TOPIC, Operation.CREATE:
                used.add("CreateTopics")
            case Resource.TOPIC, Operation.DELETE:
                used.add("DeleteRecords" if right.name == stream.topic else "DeleteTopics")
    if absent := find_absent(properties, used, Deadline(_SECONDS)):
        what = ", ".join(f"{one.request} ({one.without})" for one in absent)
        raise Refused(
            f"the cluster does not take what this needs: {what}",
            subject=f"stream {stream.name}",
            hint=f"`backlogctl doctor {stream.name}` says what else it does not take; one "
            "broker was asked: where the cluster is being upgraded, try again after that",
        )


def describe_rights(rights: Iterable[Right]) -> str:
    """Each with what it is for."""
    return ", ".join(f"{right} (to {right.purpose})" for right in rights)


def find_principal(properties: Any) -> str:
    """The principal as Kafka names it by default; a placeholder where only the cluster knows."""
    user = properties.get("sasl.username")
    return f"User:{user}" if user else "User:NAME"
