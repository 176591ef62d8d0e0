"""What a report needs of a stored plan; one of another version may have it otherwise."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from backlog.config.base import explain
from backlog.errors import Refused
from backlog.values import Recovery
from replay.kinds import EXPAND


class _Part(BaseModel):
    """Keys that are not here are not read; what is not needed may be missing."""

    model_config = ConfigDict(strict=True)


class _Gap(_Part):
    id: str
    start: int | None
    end: int | None


class _Window(_Part):
    begin: str = Field(alias="from")
    to: str
    timezone: str


class _Limits(_Part):
    messages_per_second: int | None = None
    max_live_lag: int | None = None


class _Options(_Part):
    allow: list[str]


class _Counts(_Part):
    expected: int
    candidates: int
    rebuilt: int
    surviving: int = 0
    consumed: int = 0
    already_injected: int = 0
    quarantined: int = 0
    collapsed: int = 0
    unrecoverable: int = 0
    surplus: int = 0
    shortfall: int = 0


class _Rebuilt(_Part):
    partition: int
    expected: int
    rebuilt: int


class _Proof(_Part):
    rate: float | None
    compared: int


class _Quarantine(_Part):
    reasons: dict[str, int] = {}


class _Outcome(_Part):
    verdict: str
    reasons: list[str]
    counts: _Counts
    partitions: list[_Rebuilt]
    proof: _Proof
    quarantine: _Quarantine = _Quarantine()
    fidelity: str
    chunks: int
    bytes: int


class _Plan(_Part):
    warnings: list[str] = []
    other_groups: list[str]
    options: _Options
    planned_by: dict[str, str] = {}
    planned_at: str | None = None
    isolation: str | None = None
    configuration: dict[str, Any] = {}


class _Rebuild(_Plan):
    outcome: _Outcome
    gaps: list[_Gap] = []
    deliver: str | None
    off_peak: _Window | None = None
    limits: _Limits | None = None


class _Unread(_Part):
    partition: int
    lag: int
    lost: int | None = 0
    start: int | None = None


class _Temporary(_Part):
    topic: str
    partitions: int


class _Disk(_Part):
    enough: bool | None


class _Expansion(_Plan):
    lag: int
    lost: int | None
    partitions: list[_Unread]
    replicas: int
    consumers: int
    temporary: _Temporary
    recovery_group: str
    order: str
    rate_per_consumer: float
    rate_source: str
    seconds_to_drain_now: float | None
    seconds_to_drain_expanded: float | None
    seconds_to_loss: float | None
    wins: bool | None
    disk: _Disk
    stopped: list[str] = []
    raised: list[str] = []
    created: list[str] = []
    given_back: list[str] = []


def check_shape(recovery: Recovery) -> None:
    """Refuses a plan that cannot be reported on.

    Raises:
        Refused: says what of it this version does not know.
    """
    model = _Expansion if recovery.kind == EXPAND else _Rebuild
    try:
        model.model_validate(dict(recovery.plan))
    except ValidationError as error:
        problem = explain(error.errors(include_url=False)[0])
    else:
        return
    # Raised outside of `except`: pydantic's error carries the plan.
    raise Refused(
        "its plan was made by another version of backlogctl, or changed: "
        f"{'.'.join(problem.path)} {problem.text}",
        subject=f"recovery {recovery.id}",
        hint="use the version that planned it; "
        f"`backlogctl show {recovery.id} --json` has the plan and the record as they are",
    )
