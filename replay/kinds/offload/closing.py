"""Cancels an offload: before the group moved it is taken back, from there on it goes forward."""

from __future__ import annotations

from backlogctl.errors import (
    BacklogError,
    KafkaFailure,
    LeaseHeld,
    Refused,
    StagingError,
    VerificationFailed,
)
from backlogctl.kafka.groups import EndsBehind
from backlogctl.replay.consumers.stopped_group import put_back_commits
from backlogctl.replay.engine.archives import name_owner
from backlogctl.replay.engine.plan import find_identity
from backlogctl.replay.kinds.offload.context import OffloadContext
from backlogctl.replay.kinds.offload.gaps import drop_reread
from backlogctl.replay.kinds.offload.plan import GIVEN_UP, THROWN_AWAY
from backlogctl.replay.kinds.offload.steps import BACK, FORWARD_STEPS

READ_AGAIN = "the group is committed before them, and they were not deleted: it reads them"
NOT_OURS = "what lies in the archive's place is somebody else's, and stays"


def close_offload(context: OffloadContext) -> None:
    """Requests are no longer looked at; Ctrl-C is: cancelling again goes on.

    The consumers are started in any case, before the archive is thrown away.
    """
    context.closing = context.cancelling = True
    if not context.goes_forward:
        for step in BACK:
            _take(context, step.name)
        _throw_away(context)
        return
    context.say("the group was moved already: it goes forward, and what is archived stays")
    given_up: BacklogError | None = None
    for step in FORWARD_STEPS:
        if given_up and step.name in ("move_group", "delete_records", "verify"):
            continue
        try:
            _take(context, step.name)
        except LeaseHeld:
            raise
        # Ends that are not to be trusted may stay so for long; the consumers do not wait for it.
        except (KafkaFailure, Refused, StagingError, VerificationFailed, EndsBehind) as error:
            passes = isinstance(error, KafkaFailure) and error.retryable
            if step.name == "restore" or (passes and not isinstance(error, EndsBehind)):
                raise
            given_up = error
            _give_up(context, step.name, error)
    if given_up is not None:
        context.say(_say_where(context, given_up))


def _take(context: OffloadContext, name: str) -> None:
    step = next(item for item in (*BACK, *FORWARD_STEPS) if item.name == name)
    if context.is_complete(step.name):
        return
    context.begin(step.name)
    step.start(context)
    context.lease.confirm()
    step.complete(context)
    context.end(step.name)


def _give_up(context: OffloadContext, step: str, error: BacklogError) -> None:
    """What failed for good is told; nothing that it would have deleted is deleted."""
    context.say(f"{error.message}; {error.hint}")
    context.record(GIVEN_UP, step=step, **error.to_json())
    if step in ("move_group", "delete_records"):
        try:
            if context.has_source():
                put_back_commits(context)
            drop_reread(context, READ_AGAIN)
        except LeaseHeld:
            raise
        except Refused as refused:  # such as a group that is gone
            context.say(f"{refused.message}; what the offload took off the brokers stays on record")


def _say_where(context: OffloadContext, error: BacklogError) -> str:
    """Where the messages are that it was about."""
    if not context.has_source():
        left = "nothing of it is left in the topic, which is another one"
    else:
        lows = context.read_lows()
        ranges = [
            f"partition {item.partition} {max(item.start, lows[item.partition]):,} to {item.end:,}"
            for item in context.ranges
            if lows[item.partition] < item.end
        ]
        told = ", ".join(ranges) or "nothing"
        left = f"still in the topic, until retention removes it: {told}"
    if context.archive is None:
        return f"{left}; there is no archive"
    bad = ", which is not as it was recorded" if isinstance(error, StagingError) else ""
    own = context.recovery.id
    return f"{left}; archive {own} is kept{bad}: `backlogctl archive verify {own}` looks at it"


def _throw_away(context: OffloadContext) -> None:
    """The files of an archive that nothing was deleted for."""
    if not context.was_started("archive") or context.plan.place is None:
        return
    from backlogctl.spark_backfill.archive.verification import ForeignArchive, purge_archive

    actor, owner = str(find_identity()), name_owner(context.recovery)
    try:
        purged = purge_archive(lambda: context.spark, context.location, owner=owner)
    except ForeignArchive as error:
        context.say(f"{error.subject}: {error.message}")
        context.record(NOT_OURS, **error.to_json())
        return
    if context.archive is not None:
        context.workspace.ledger.archives.mark_purged(context.recovery.id, actor)
    context.record(THROWN_AWAY, files=purged.files, bytes=purged.bytes)
