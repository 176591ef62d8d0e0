"""What changes no message takes effect from the configuration: when and how fast, who approves.

The plan stays as it is stored and hashed; these values are laid over it when it is shown, approved
or run, so that a person sees what will happen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from backlog.values import Recovery
    from replay.recovery.plan import Plan
    from replay.recovery.workspace import Workspace

Approval = Literal["named", "second_person", "auto"]
TERMS_CHANGED = "terms taken from the configuration"
TERMS = ("approval", "deliver", "limits", "off_peak")
_LENIENT_FIRST: tuple[Approval, ...] = ("auto", "named", "second_person")


def choose_stricter(one: Approval, other: Approval) -> Approval:
    """Of two ways to approve the stricter one: a plan is not made easier to approve afterwards."""
    return max(one, other, key=_LENIENT_FIRST.index)


def find_changed_terms(planned: Plan, now: Plan) -> Mapping[str, Any]:
    """The values that another configuration than the plan's gives, as plain JSON."""
    before, after = _dump(planned), _dump(now)
    return {name: after[name] for name in after if after[name] != before[name]}


def record_terms(workspace: Workspace, recovery: Recovery, actor: str, doing: str) -> None:
    """Puts on record which values an approval or a run took, where they are not the plan's."""
    planned, now = workspace.plan_of(recovery), workspace.plan_now(recovery)
    if changed := find_changed_terms(planned, now):
        detail = {"for": doing, **changed}
        workspace.ledger.events.append(recovery.id, actor, TERMS_CHANGED, detail)


def _dump(plan: Plan, names: Iterable[str] = TERMS) -> Mapping[str, Any]:
    return plan.model_dump(mode="json", include=set(names))
