"""`audit producers`: what batch headers say of those who write, without touching any of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from backlogctl.config import Stream
from backlogctl.kafka.rights import Resource, Right
from backlogctl.monitoring.producers.findings import (
    ADVICE,
    BLIND_SPOTS,
    Suspicion,
    SuspicionCode,
    describe_limits,
    find_suspicions,
)
from backlogctl.monitoring.producers.profile import LogProfile, ProducerProfile
from backlogctl.monitoring.producers.reader import profile_topic
from backlogctl.replay.audits.audit import (
    Audit,
    AuditFinding,
    AuditLevel,
    AuditOutcome,
    Say,
    SpanOptions,
)
from backlogctl.replay.engine.kind import Workspace
from backlogctl.values import to_document, to_plain

# The others only cost time.
_LEVELS: Mapping[SuspicionCode, AuditLevel] = {
    SuspicionCode.EPOCH_RESTARTED: AuditLevel.SUSPECT,
    SuspicionCode.SEQUENCE_JUMP: AuditLevel.SUSPECT,
    SuspicionCode.NOT_IDEMPOTENT: AuditLevel.UNKNOWN,  # its losses leave no trace in a log
}


class ProducerAuditing(Audit):
    """Batches are not decompressed, and no payload is looked at."""

    name = "producers"
    summary = "Show who writes the topic, and where batches look as if some were lost."
    options_model = SpanOptions
    uses_spark = False

    def list_rights(self, stream: Stream) -> tuple[Right, ...]:
        """It does not look at the group."""
        every = super().list_rights(stream)
        return tuple(right for right in every if right.resource is Resource.TOPIC)

    def look(
        self, workspace: Workspace, stream: Stream, bounds: SpanOptions, say: Say
    ) -> AuditOutcome:
        """Reads the headers of every batch once."""
        say("reading batch headers")
        properties = workspace.properties(stream)
        profile = profile_topic(properties, stream.topic, bounds.since, bounds.until, say=say)
        findings = [_to_finding(one, stream.name) for one in find_suspicions(profile)]
        findings += [
            AuditFinding("limits", AuditLevel.NOTED, sentence)
            for sentence in describe_limits(profile)
        ]
        return AuditOutcome(
            figures={
                "messages": profile.messages,
                **{
                    name: sum(getattr(one, name) for one in profile.partitions)
                    for name in ("committed", "aborted", "undecided")
                },
                "batches": profile.batches,
                "bytes": profile.bytes,
                "producers": len({one.producer_id for one in profile.producers})
                + profile.producers_left_out,
                "not_idempotent": sum(one.not_idempotent for one in profile.partitions),
            },
            findings=findings,
            claims=BLIND_SPOTS,
            tables={
                "partitions": _list_partitions(profile),
                "producers": _list_producers(profile.producers),
            },
        )


def _to_finding(one: Suspicion, stream: str) -> AuditFinding:
    return AuditFinding(
        check=str(one.code),
        level=_LEVELS.get(one.code, AuditLevel.NOTED),
        found=one.sentence,
        mend=ADVICE[one.code],
        commands=(f"backlogctl audit sequence {stream}",) if one.code in _LEVELS else (),
        detail={
            "partition": one.partition,
            "producer_id": one.producer_id,
            "from": to_plain(one.from_time),
            "to": to_plain(one.to_time),
            "offsets": [[item.partition, item.start, item.end] for item in one.offsets],
        },
    )


def _list_partitions(profile: LogProfile) -> list[dict[str, Any]]:
    return [
        {
            **to_document(one, "partition", "start", "end", "messages"),
            **to_document(one, "committed", "aborted", "undecided", "bytes", "batches", "codecs"),
            "first": to_plain(one.first_time),
            "last": to_plain(one.last_time),
        }
        for one in profile.partitions
    ]


def _list_producers(producers: tuple[ProducerProfile, ...]) -> list[dict[str, Any]]:
    """Busiest first, over all partitions."""
    by_id: dict[int, list[ProducerProfile]] = defaultdict(list)
    for one in producers:
        by_id[one.producer_id].append(one)
    rows = [
        {
            "producer_id": number,
            "messages": sum(one.messages for one in parts),
            "batches": sum(one.batches for one in parts),
            "partitions": len({one.partition for one in parts}),
            "epochs": len({span.epoch for one in parts for span in one.epochs}),
            "transactional": any(one.is_transactional for one in parts),
        }
        for number, parts in by_id.items()
    ]
    return sorted(rows, key=lambda row: -int(row["messages"]))
