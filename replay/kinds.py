"""Kinds of recoveries, and what stands against a plan of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from backlog.errors import Refused
from backlog.numbers import format_plural
from backlog.values import Recovery

REBUILD = "rebuild"
EXPAND = "expand"
ALLOW_DISK = "disk"


@dataclass(frozen=True, slots=True)
class Kind:
    """`check` raises Refused for a plan that may not run, whoever approves it.

    `is_automatic` says whether `approval: auto` approves a plan.
    """

    check: Callable[[Recovery], None]
    is_automatic: Callable[[Mapping[str, Any]], bool]


def find_kind(recovery: Recovery) -> Kind:
    """What this program knows of a recovery's kind.

    Raises:
        Refused: nothing; another program made it.
    """
    if recovery.kind not in _KINDS:
        raise Refused(
            f"this program does not know the kind {recovery.kind}",
            subject=f"recovery {recovery.id}",
            hint="use the version of backlogctl that planned it",
        )
    return _KINDS[recovery.kind]


def _check_rebuild(recovery: Recovery) -> None:
    """Surplus that was not allowed by name, or readers who would get messages twice."""
    plan = recovery.plan
    subject = f"recovery {recovery.id}"
    if plan["outcome"]["verdict"] == "surplus" and "surplus" not in plan["options"]["allow"]:
        surplus = plan["outcome"]["counts"]["surplus"]
        raise Refused(
            f"the plan would send {format_plural(surplus, 'message')} not known to be lost",
            subject=subject,
            hint=f"mend the configuration, or `backlogctl plan rebuild {recovery.stream} "
            "--allow surplus`",
        )
    if plan["other_groups"] and plan["deliver"] != "topic":
        names = ", ".join(plan["other_groups"])
        raise Refused(
            f"other groups read topic {recovery.topic} and would get the messages again: {names}",
            subject=subject,
            hint=f"say `deliver: topic` in stream {recovery.stream} if that is right, "
            "and plan again",
        )


def _is_exact(plan: Mapping[str, Any]) -> bool:
    if plan["outcome"]["verdict"] != "exact":
        return False
    return not plan["other_groups"] or bool(plan["deliver"] == "topic")


def _check_expansion(recovery: Recovery) -> None:
    """A copy that does not fit, and was not allowed by name."""
    plan = recovery.plan
    if plan["disk"]["enough"] is False and ALLOW_DISK not in plan["options"]["allow"]:
        raise Refused(
            "the brokers' disks have no room for the temporary topic",
            subject=f"recovery {recovery.id}",
            hint=f"make room, then `backlogctl plan expand {recovery.stream}`; `--allow disk` "
            "goes on in spite of it",
        )


_KINDS: Mapping[str, Kind] = {
    REBUILD: Kind(_check_rebuild, _is_exact),
    # It stops and starts people's consumers: always approved by name.
    EXPAND: Kind(_check_expansion, lambda _: False),
}
