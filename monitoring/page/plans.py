"""A stored plan in words. Plans of other versions may lack anything: what is there is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backlog.numbers import (
    format_bytes,
    format_count,
    format_duration,
    format_moment,
    format_plural,
)
from backlog.values import Recovery
from monitoring.page.words import say_rate, say_word

MOST_PARTITIONS = 60

Facts = tuple[tuple[str, str], ...]

_COUNTS: tuple[tuple[str, str], ...] = (
    ("expected", "lost offsets (at most)"),
    ("candidates", "rows read from the source"),
    ("surviving", "still in the topic"),
    ("consumed", "handled by the consumer"),
    ("already_injected", "put back by earlier recoveries"),
    ("rebuilt", "rebuilt"),
    ("collapsed", "collapsed (newer state of the same row)"),
    ("quarantined", "quarantined"),
    ("unrecoverable", "unrecoverable (row is gone)"),
    ("surplus", "surplus"),
    ("shortfall", "shortfall"),
)
_ALWAYS = ("expected", "candidates", "rebuilt")
_SUBTRACTED = ("surviving", "consumed", "already_injected")
_DEEDS: tuple[tuple[str, str], ...] = (
    ("stopped", "stops"),
    ("raised", "raises"),
    ("created", "creates"),
    ("given_back", "gives back"),
)
_ORDERS: Mapping[str, str] = {
    "key": "messages of a key stay in order",
    "round_robin": "spread evenly, in no order",
}


@dataclass(frozen=True, slots=True)
class PlanWords:
    """A plan as people read it.

    Attributes:
        verdict: `exact`, `short`, `surplus`; `wins`, `loses`, `no deadline`; "" where unknown.
        head, rows: the table of partitions; `more` are left out.
        deeds: what it does to whom, several sentences each.
    """

    verdict: str = ""
    reasons: tuple[str, ...] = ()
    summary: str = ""
    counts: Facts = ()
    facts: Facts = ()
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    more: int = 0
    deeds: tuple[tuple[str, tuple[str, ...]], ...] = ()
    warnings: tuple[str, ...] = ()


def tell_plan(recovery: Recovery) -> PlanWords:
    """The words of a plan; only its warnings where its kind or what is in it is not known."""
    plan = recovery.plan
    try:
        if recovery.kind == "expand":
            return _tell_expansion(recovery, plan)
        if isinstance(plan.get("outcome"), Mapping):
            return _tell_rebuild(recovery, plan, plan["outcome"])
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        pass  # a number that is none, a time that cannot be read
    return PlanWords(warnings=_texts(plan.get("warnings")))


def _tell_rebuild(
    recovery: Recovery, plan: Mapping[str, Any], outcome: Mapping[str, Any]
) -> PlanWords:
    counts = read_mapping(outcome.get("counts"))
    told = tuple(
        (words, f"{'− ' if name in _SUBTRACTED else ''}{format_count(counts[name])}")
        for name, words in _COUNTS
        if counts.get(name) or (name in _ALWAYS and counts.get(name) is not None)
    )
    rows = sorted(_rows(outcome), key=lambda row: -abs(_difference(row)))
    table = tuple(
        (
            str(row.get("partition")),
            format_count(row.get("expected")),
            format_count(row.get("rebuilt")),
            "=" if not _difference(row) else f"{_difference(row):+,}",
        )
        for row in sorted(rows[:MOST_PARTITIONS], key=lambda row: int(row.get("partition", 0)))
    )
    rebuilt = counts.get("rebuilt")
    return PlanWords(
        verdict=str(outcome.get("verdict", "")),
        reasons=_texts(outcome.get("reasons")),
        summary=f"Puts {format_plural(rebuilt, 'lost message')} back into topic {recovery.topic}."
        if isinstance(rebuilt, int)
        else "",
        counts=told,
        facts=_list_rebuild_facts(plan, outcome),
        head=("partition", "lost at most", "rebuilt", "difference"),
        rows=table,
        more=max(0, len(rows) - MOST_PARTITIONS),
        warnings=_texts(plan.get("warnings")),
    )


def _list_rebuild_facts(plan: Mapping[str, Any], outcome: Mapping[str, Any]) -> Facts:
    facts: list[tuple[str, str]] = []
    proof = read_mapping(outcome.get("proof"))
    if proof:
        rate, compared = proof.get("rate"), proof.get("compared")
        told = "nothing survives to compare with"
        if rate is not None:
            share = f"{rate:.1%}".replace("100.0%", "100 %")
            told = f"{share} of {format_count(compared)} survivors rebuilt as they are"
            equal = proof.get("equal_values")
            if proof.get("mutable") and equal is not None and equal != compared:
                told += f" by key and partition, {format_count(equal)} to the byte"
        facts.append(("proof", told))
    reasons = read_mapping(read_mapping(outcome.get("quarantine")).get("reasons"))
    if reasons:
        told = ", ".join(f"{format_count(n)} × {why}" for why, n in reasons.items())
        facts.append(("quarantine", told))
    if outcome.get("chunks"):
        chunks = format_plural(outcome["chunks"], "chunk")
        size = format_bytes(outcome.get("bytes"))
        facts.append(("messages", f"{outcome.get('fidelity', '')}, staged in {chunks}, {size}"))
    facts.append(("put back", _tell_brakes(plan)))
    facts += _tell_others(plan)
    return tuple(facts)


def _tell_brakes(plan: Mapping[str, Any]) -> str:
    brakes = []
    if window := read_mapping(plan.get("off_peak")):
        brakes.append(f"{window.get('from')}–{window.get('to')} {window.get('timezone')}")
    limits = read_mapping(plan.get("limits"))
    if rate := limits.get("messages_per_second"):
        brakes.append(f"at most {rate:,} messages/s")
    if lag := limits.get("max_live_lag"):
        brakes.append(f"waits while the live group is more than {lag:,} behind")
    return ", ".join(brakes) or "at any time, as fast as it goes"


def _tell_expansion(recovery: Recovery, plan: Mapping[str, Any]) -> PlanWords:
    wins = plan.get("wins")
    behind = sorted((r for r in _rows(plan) if r.get("lag")), key=lambda row: -row["lag"])
    shown = sorted(behind[:MOST_PARTITIONS], key=lambda row: int(row.get("partition", 0)))
    table = tuple(
        (
            str(row.get("partition")),
            format_count(row.get("lag")),
            f"{row['start']:,}" if isinstance(row.get("start"), int) else "—",
            format_moment(row["oldest_unread_at"]) if row.get("oldest_unread_at") else "unknown",
            format_count(row.get("lost")),
        )
        for row in shown
    )
    lag = plan.get("lag")
    deeds = tuple((words, _texts(plan.get(name))) for name, words in _DEEDS if plan.get(name))
    return PlanWords(
        verdict="no deadline" if wins is None else ("wins" if wins else "loses"),
        summary=f"Drains {format_plural(lag, 'message')} of topic {recovery.topic} that group "
        f"{recovery.group} has not read."
        if isinstance(lag, int)
        else "",
        facts=_list_expansion_facts(plan),
        head=("partition", "behind", "relay from", "oldest unread", "lost"),
        rows=table,
        more=max(0, len(behind) - MOST_PARTITIONS),
        deeds=deeds,
        warnings=_texts(plan.get("warnings")),
    )


def _list_expansion_facts(plan: Mapping[str, Any]) -> Facts:
    facts: list[tuple[str, str]] = []
    now, then = plan.get("seconds_to_drain_now"), plan.get("seconds_to_drain_expanded")
    replicas = format_plural(plan.get("replicas") or 0, "consumer")
    consumers = format_plural(plan.get("consumers") or 0, "consumer")
    facts.append(("as it is", f"{_in(now)}, by {replicas}"))
    faster = f": {now / then:.0f} times as fast" if now and then and now / then >= 1.5 else ""
    facts.append(("expanded", f"{_in(then)}, by {consumers}{faster}"))
    loss = plan.get("seconds_to_loss")
    if loss is not None:
        told = f"reaches the oldest unread message in {format_duration(loss)}"
        facts.append(("retention", f"{told} (by {plan.get('loss_by')})"))
    if plan.get("rate_per_consumer") is not None:
        speed = f"{say_rate(plan['rate_per_consumer'])} by each consumer"
        facts.append(("speed", f"{speed} ({plan.get('rate_source', '')})"))
    if plan.get("produced_per_second") is not None:
        facts.append(("written meanwhile", say_rate(plan["produced_per_second"])))
    temporary = read_mapping(plan.get("temporary"))
    if temporary:
        order = str(plan.get("order", ""))
        facts.append(
            (
                "spread",
                f"{plan.get('factor')} × the partitions, "
                f"{format_count(temporary.get('partitions'))} in all; "
                f"{_ORDERS.get(order, say_word(order))}",
            )
        )
        facts.append(("temporary topic", str(temporary.get("topic", ""))))
    if disk := read_mapping(plan.get("disk")).get("told"):
        facts.append(("disk", str(disk)))
    facts += _tell_others(plan)
    return tuple(facts)


def _tell_others(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    others = _texts(plan.get("other_groups"))
    return [("other groups", ", ".join(others) or "none")]


def _in(seconds: float | None) -> str:
    return "never drained" if seconds is None else f"drained in {format_duration(seconds)}"


def _difference(row: Mapping[str, Any]) -> int:
    return int(row.get("rebuilt") or 0) - int(row.get("expected") or 0)


def _rows(plan: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = plan.get("partitions")
    return [row for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []


def read_mapping(value: Any) -> Mapping[str, Any]:
    """The value where it is one; else an empty one."""
    return value if isinstance(value, Mapping) else {}


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return ()
    return tuple(str(item) for item in value)
