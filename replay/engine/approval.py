"""Approval of a plan: bound to its hash, by a person, for a limited time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from backlogctl.clock import format_time, utc_now
from backlogctl.errors import ApprovalNeeded, Refused
from backlogctl.replay.engine.kind import Workspace, record_terms
from backlogctl.replay.engine.plan import Approver, find_identity
from backlogctl.values import Recovery, RecoveryState, hash_value

AUTOMATIC = "automatic"
# Recorded as the one who rejected a plan that was not answered in time.
NOBODY = "nobody"


class SamePerson(Refused):
    """The planner's own account approves where a second person is asked for."""


def approve_plan(
    workspace: Workspace,
    recovery: Recovery,
    *,
    by: str,
    identity: Approver | None = None,
    plan_hash: str | None = None,
    now: datetime | None = None,
) -> Recovery:
    """Approves the plan as it is stored; of two who approve at once, one is refused (fault 44).

    An approval that expired before the first run is renewed the same way.

    Args:
        plan_hash: of the plan that the approver saw, where it was shown earlier (fault 63).

    Raises:
        Refused: the state does not allow it, the plan may not run at all, or it is another one
            than the approver saw.
        SamePerson: `second_person` is asked and the planner's own account approves.
        InvalidTransition: another recovery of the same topic or group is active.
    """
    workspace.kind_of(recovery)
    who, at = identity or find_identity(), now or utc_now()
    if recovery.state is not RecoveryState.PLANNED and not is_expired(recovery, at):
        raise refuse_state(recovery, "approved")
    check_hash(recovery)
    check_runnable(workspace, recovery)
    plan = workspace.plan_now(recovery)
    planner = plan.planned_by
    if plan.approval == "second_person" and planner.is_same_person(who):
        raise SamePerson(
            f"planned by {planner}; another person must approve, and this is the same account",
            subject=f"recovery {recovery.id}",
            hint="ask a colleague to run `backlogctl approve` from their own account",
        )
    expires = at + workspace.config.guards.approval_expires
    approved = workspace.ledger.recoveries.approve(
        recovery.id,
        by=by,
        identity=str(who),
        plan_hash=recovery.plan_hash if plan_hash is None else plan_hash,
        expires_at=expires,
    )
    record_terms(workspace, approved, str(who), "approve")
    return approved


def approve_automatically(workspace: Workspace, recovery: Recovery) -> Recovery:
    """Approves a plan of a stream with `approval: auto` where its kind allows that."""
    plan = workspace.plan_now(recovery)
    if plan.approval != "auto" or not workspace.kind_of(recovery).is_automatic(plan):
        return recovery
    identity = Approver("policy", "auto", find_identity().host)
    return approve_plan(workspace, recovery, by=AUTOMATIC, identity=identity)


def reject_plan(workspace: Workspace, recovery: Recovery, *, by: str, reason: str) -> Recovery:
    """Closes a plan that nobody shall run; its gaps are open again.

    Raises:
        Refused: it is not waiting for an approval; also when somebody approves it meanwhile
            (fault 44).
    """
    workspace.kind_of(recovery)
    if recovery.state is not RecoveryState.PLANNED:
        raise refuse_state(recovery, "rejected")
    detail: dict[str, Any] = {"by": by, "reason": reason}
    return workspace.ledger.recoveries.advance(
        recovery.id,
        RecoveryState.REJECTED,
        actor=str(find_identity()),
        detail=detail,
        expected=RecoveryState.PLANNED,
    )


def check_approval(recovery: Recovery, now: datetime | None = None) -> None:
    """Whether this plan may run now (fault 63).

    The expiry is for the start: work that began in time goes on in later nights.

    Raises:
        ApprovalNeeded: not approved, for another hash, or expired.
        Refused: the stored plan is not the one its hash was made of.
    """
    subject = f"recovery {recovery.id}"
    again = f"look at it with `backlogctl show {recovery.id}`, then `backlogctl approve"
    hint = f"{again} {recovery.id} --by NAME`"
    check_hash(recovery)
    if recovery.state is RecoveryState.PLANNED or recovery.approved_hash is None:
        raise ApprovalNeeded("this plan is not approved yet", subject=subject, hint=hint)
    if recovery.approved_hash != recovery.plan_hash:
        raise ApprovalNeeded("the approval is for another plan", subject=subject, hint=hint)
    expires = recovery.approval_expires_at
    if expires and is_expired(recovery, now):
        raise ApprovalNeeded(
            f"the approval expired at {format_time(expires)}", subject=subject, hint=hint
        )


def is_expired(recovery: Recovery, now: datetime | None = None) -> bool:
    """Whether it was approved, and not begun before the approval expired."""
    expires = recovery.approval_expires_at
    begun = recovery.state is not RecoveryState.APPROVED
    return not begun and expires is not None and expires <= (now or utc_now())


def check_hash(recovery: Recovery) -> None:
    """Whether the stored plan is still what its hash was made of.

    Raises:
        Refused: somebody changed it.
    """
    if hash_value(dict(recovery.plan)) != recovery.plan_hash:
        raise Refused(
            "the stored plan is not the one its hash was made of",
            subject=f"recovery {recovery.id}",
            hint="cancel it, then plan again",
        )


def check_runnable(workspace: Workspace, recovery: Recovery) -> None:
    """Whether the plan may run at all, whoever approves it.

    Raises:
        Refused: its kind says why not, or cannot read it.
    """
    kind = workspace.kind_of(recovery)
    kind.check(workspace.plan_now(recovery), recovery)


def describe_expiry(recovery: Recovery, now: datetime | None = None) -> timedelta | None:
    """How long the approval still holds; None without one."""
    if recovery.approval_expires_at is None:
        return None
    return max(timedelta(0), recovery.approval_expires_at - (now or utc_now()))


def refuse_state(recovery: Recovery, verb: str) -> Refused:
    """`cannot be approved: the newer plan r-… took its place`."""
    told = f"it is {recovery.state}"
    seen = recovery.id
    if recovery.approved_by and recovery.state is RecoveryState.APPROVED:
        told = f"it was approved by {recovery.approved_by} already"
    elif newer := recovery.detail.get("superseded_by"):
        told, seen = f"the newer plan {newer} took its place", newer
    return Refused(
        f"cannot be {verb}: {told}",
        subject=f"recovery {recovery.id}",
        hint=f"see `backlogctl show {seen}`",
    )
