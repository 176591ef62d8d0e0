"""The plan, and who planned and approved it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backlog.clock import format_time
from backlog.numbers import format_duration, format_plural
from replay.approval import AUTOMATIC
from replay.expand_views import tell_verdict
from replay.report.material import Material

_COUNTS = {
    "expected": "lost offsets, at most that many messages",
    "candidates": "rows read from the source",
    "surviving": "of them still in the topic",
    "consumed": "of them handled by the consumer",
    "already_injected": "of them put back by earlier recoveries",
    "quarantined": "of them quarantined: they cannot be built",
    "rebuilt": "rebuilt",
}
_VERDICTS = {
    "exact": "plan: exact",
    "short": "plan: short",
    "surplus": "plan: surplus",
    "wins": "plan: before retention",
    "loses": "plan: retention is faster",
    "no_deadline": "plan: no loss in sight",
}
_ORDERS = {
    "key": "messages of a key stay in order",
    "round_robin": "spread evenly, in no order",
}


def describe_people(material: Material) -> dict[str, Any]:
    """Who planned and who approved, by account and by name, when, and which hash."""
    recovery = material.recovery
    planner: Mapping[str, str] = recovery.plan.get("planned_by", {})
    approved = material.find_last("approved")
    expires = recovery.approval_expires_at
    return {
        "planned_by": "{kind}:{user}@{host}".format(
            **{"kind": "?", "user": "?", "host": "?", **planner}
        ),
        "planned_at": recovery.plan.get("planned_at") or format_time(recovery.created_at),
        "plan_hash": recovery.plan_hash,
        "approval": recovery.plan.get("approval"),
        "approved_by": recovery.approved_by,
        "approved_identity": recovery.approved_identity,
        "approved_at": None if approved is None else format_time(approved.at),
        "approved_hash": recovery.approved_hash,
        "expires_at": None if expires is None else format_time(expires),
        "automatic": recovery.approved_by == AUTOMATIC,
    }


def describe_plan(material: Material) -> dict[str, Any]:
    """What was planned: its verdict, counts, partitions, terms and warnings."""
    own = _describe_expansion if material.is_expansion else _describe_rebuild
    plan = material.recovery.plan
    told = own(plan)
    return {
        "kind": material.recovery.kind,
        **told,
        "verdict_told": _VERDICTS.get(told["verdict"], told["verdict"]),
        "other_groups": list(plan.get("other_groups", ())),
        "allowed": list(plan.get("options", {}).get("allow", ())),
        "warnings": list(plan.get("warnings", ())),
    }


def _describe_rebuild(plan: Mapping[str, Any]) -> dict[str, Any]:
    outcome = plan["outcome"]
    counts = outcome["counts"]
    shown = [
        {"name": name, "value": counts[name], "told": told}
        for name, told in _COUNTS.items()
        if counts.get(name) or name in ("expected", "candidates", "rebuilt")
    ]
    return {
        "verdict": outcome["verdict"],
        "reasons": list(outcome["reasons"]),
        "counts": shown,
        "terms": _tell_rebuild_terms(plan),
        # Numbers only: what differs or cannot be built names rows.
        "partitions": [
            {name: row.get(name, 0) for name in ("partition", "expected", "rebuilt")}
            for row in outcome["partitions"]
        ],
    }


def _tell_rebuild_terms(plan: Mapping[str, Any]) -> list[dict[str, str]]:
    outcome, limits = plan["outcome"], plan.get("limits") or {}
    proof = outcome["proof"]
    if proof["rate"] is None:
        proved = "nothing survives to compare with"
    else:
        proved = f"{proof['rate']:.1%} of ".replace("100.0%", "100 %")
        proved += f"{format_plural(proof['compared'], 'surviving message')} rebuilt as they are"
    staged = f"{format_plural(outcome['chunks'], 'chunk')}, "
    staged += f"{format_plural(outcome['bytes'], 'byte')}, {outcome['fidelity']}"
    brakes = []
    if window := plan.get("off_peak"):
        brakes.append(f"{window['from']}–{window['to']} {window['timezone']}")
    if rate := limits.get("messages_per_second"):
        brakes.append(f"at most {rate:,} messages/s")
    if lag := limits.get("max_live_lag"):
        brakes.append(f"waiting while the live group is more than {lag:,} behind")
    return [
        {"name": "proof of the rules", "value": proved},
        {"name": "staged", "value": staged},
        {"name": "put back", "value": ", ".join(brakes) or "at any time, as fast as it goes"},
    ]


def _describe_expansion(plan: Mapping[str, Any]) -> dict[str, Any]:
    temporary = plan["temporary"]
    counts = [
        ("lag", plan["lag"], "unread messages"),
        ("replicas", plan["replicas"], "consumers in normal times"),
        ("consumers", plan["consumers"], "consumers while expanded"),
        ("temporary_partitions", temporary["partitions"], "partitions of the temporary topic"),
    ]
    if plan["lost"]:
        counts.append(("lost", plan["lost"], "messages lost before, at most"))
    return {
        "verdict": tell_verdict(plan["wins"]),
        "reasons": [],
        "counts": [{"name": n, "value": value, "told": told} for n, value, told in counts],
        "terms": _tell_expansion_terms(plan),
        "partitions": [
            {name: row.get(name) for name in ("partition", "lag", "lost", "start")}
            for row in plan["partitions"]
        ],
    }


def _tell_expansion_terms(plan: Mapping[str, Any]) -> list[dict[str, str]]:
    now, expanded = plan["seconds_to_drain_now"], plan["seconds_to_drain_expanded"]
    loss = plan["seconds_to_loss"]
    terms = [
        ("drained as it was", "never" if now is None else f"in {format_duration(now)}"),
        ("drained expanded", "never" if expanded is None else f"in {format_duration(expanded)}"),
        (
            "retention",
            "deletes nothing unread in sight"
            if loss is None
            else f"deletes the oldest unread message in {format_duration(loss)}",
        ),
        ("one consumer", f"{plan['rate_per_consumer']:,.0f} messages/s ({plan['rate_source']})"),
        ("order", _ORDERS.get(plan["order"], str(plan["order"]))),
        ("temporary topic", str(plan["temporary"]["topic"])),
        ("recovery group", str(plan["recovery_group"])),
    ]
    deeds = [
        (words, str(sentence))
        for name, words in (
            ("stopped", "stops"),
            ("raised", "raises"),
            ("created", "creates"),
            ("given_back", "gives back"),
        )
        for sentence in plan.get(name, ())
    ]
    return [{"name": name, "value": value} for name, value in (*terms, *deeds)]
