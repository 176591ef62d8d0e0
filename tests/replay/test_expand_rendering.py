"""Plans of expansions in any width, and what makes an approved plan stale."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from backlogctl.config import Config, Stream
from backlogctl.errors import Refused
from backlogctl.ledger import BurndownSample
from backlogctl.replay.consumers.fleet import fingerprint_with_consumers, keep_waits
from backlogctl.replay.engine.approval import approve_automatically, approve_plan, reject_plan
from backlogctl.replay.engine.guards import fingerprint_stream
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.next_commands import list_next_commands
from backlogctl.replay.engine.plan import find_changes
from backlogctl.replay.kinds.expand import planning as expand
from backlogctl.replay.kinds.expand.steps import explain_missing_hold
from backlogctl.replay.kinds.rebuild.planning import FINGERPRINT
from backlogctl.replay.present.progress import describe_progress
from backlogctl.replay.present.status import describe_recovery, describe_run
from backlogctl.replay.present.terminal import render_progress, render_recoveries
from backlogctl.values import RecoveryState
from tests.kit.ledger import NOON
from tests.kit.recoveries import (
    make_burndown,
    make_expand_plan,
    make_step,
    store_expand_plan,
    store_plan,
)
from tests.replay.conftest import Verb
from tests.replay.present.test_rendering import ODD, draw, draw_told

MINUTE = NOON + timedelta(minutes=1)


def test_an_expansion_is_described_as_the_contract_says(desk: Workspace) -> None:
    recovery = store_expand_plan(desk, warnings=["beware"])
    document = describe_recovery(desk, recovery)
    contract = {"id", "kind", "stream", "state", "plan_hash", "verdict", "counts", "partitions"}
    assert contract | {"warnings"} <= set(document)
    assert (document["kind"], document["verdict"]) == ("expand", "wins")
    assert document["warnings"] == ["beware"]
    assert document["counts"] == {
        "lag": 1_200_000,
        "lost": 0,
        "canary": 500,
        "consumers": 30,
        "temporary_partitions": 30,
    }
    for wins, verdict in ((None, "no_deadline"), (False, "loses")):
        assert describe_recovery(desk, store_expand_plan(desk, wins=wins))["verdict"] == verdict


def test_a_run_has_counts_before_it_has_any(desk: Workspace) -> None:
    recovery = store_expand_plan(desk)
    empty = {"relayed": 0, "handled": 0, "drained_per_second": None}
    assert describe_run(desk, recovery, {})["counts"] == empty
    told = describe_run(desk, recovery, {"counts": {"relayed": 7, "handled": 5}, "seconds": 3})
    assert told["counts"] == {"relayed": 7, "handled": 5, "drained_per_second": None}
    assert (told["id"], told["state"], told["seconds"]) == (recovery.id, "planned", 3)


def test_an_expansion_is_approved_and_rejected_by_name(desk: Workspace) -> None:
    planned = store_expand_plan(desk, approval="auto")
    assert approve_automatically(desk, planned).state is RecoveryState.PLANNED
    assert list_next_commands(desk, planned) == [f"backlogctl approve {planned.id} --by NAME"]
    assert approve_plan(desk, planned, by="ada").approved_by == "ada"
    desk.ledger.recoveries.advance(planned.id, RecoveryState.CANCELLED, "ada")
    other = store_expand_plan(desk)
    assert reject_plan(desk, other, by="ada", reason="").state is RecoveryState.REJECTED


def test_a_copy_that_does_not_fit_is_not_approved_unless_allowed(desk: Workspace) -> None:
    full = store_expand_plan(desk, disk={"enough": False})
    assert list_next_commands(desk, full) == []
    with pytest.raises(Refused, match="no room") as caught:
        approve_plan(desk, full, by="ada")
    assert "backlogctl plan expand orders" in caught.value.hint
    allowed = store_expand_plan(desk, disk={"enough": False}, options={"allow": ["disk"]})
    assert approve_plan(desk, allowed, by="ada").approved_by == "ada"


@pytest.mark.parametrize("width", [80, 100])
def test_a_plan_is_whole_in_any_terminal(desk: Workspace, width: int) -> None:
    partitions = [
        {**make_expand_plan().dump()["partitions"][0], "partition": number, "lag": 1000 + number}
        for number in range(30)
    ]
    recovery = store_expand_plan(desk, partitions=partitions, warnings=["beware " * 20])
    document = describe_recovery(desk, recovery)
    text = draw_told(desk, recovery, width)
    text += draw(render_recoveries({"recoveries": [document]}), width=width)
    assert max(len(line) for line in text.splitlines()) <= width
    for told in (
        "drained in 11 h 6 min, by 3 consumers",
        "drained in 14 min, by 30 consumers: 46 times as fast",
        "1,200,000 (no commit)",
        "and 18 partitions with",
        "retention.ms of orders from 1 d to unlimited",
        "other groups  audit",
        "planned  wins",
    ):
        assert told in text
    assert "lost" not in text
    assert text.count("beware") == 20


def test_a_plan_says_what_is_unknown(desk: Workspace) -> None:
    changes: dict[str, Any] = {
        "seconds_to_drain_now": None,
        "seconds_to_drain_expanded": None,
        "seconds_to_loss": None,
        "loss_by": None,
        "wins": None,
        "produced_per_second": None,
        "other_groups": [],
        "raised": [],
    }
    text = draw_told(desk, store_expand_plan(desk, **changes))
    assert "never drained, by 3 consumers" in text
    assert "when it deletes what is unread is not known" in text
    assert "none reads the topic" in text
    free = {**changes, "hold": {"needed": False, "changes": {}}}
    text = draw_told(desk, store_expand_plan(desk, **free))
    assert "deletes nothing in sight" in text
    assert "no deadline" in text


def test_foreign_text_is_not_markup(desk: Workspace) -> None:
    changes: dict[str, Any] = {
        "warnings": [ODD],
        "other_groups": [ODD],
        "stopped": [ODD],
        "created": [ODD],
        "rate_source": ODD,
        "disk": {"enough": True, "told": ODD},
    }
    planned = store_expand_plan(desk, **changes)
    recovery = replace(planned, approved_by=ODD, approved_identity=ODD)
    steps = [make_step(ODD, 0, 1), make_step(ODD, 1, None)]
    progress = describe_progress(steps, (), MINUTE)
    text = draw_told(desk, recovery, 300) + draw(render_progress(progress), width=300)
    assert text.count("[/ops]") >= 8 + 3


def test_the_live_view_tells_rates_of_the_last_seconds_and_the_time_left() -> None:
    steps = [
        make_step("validate", 0, 0.5),
        make_step("stop_consumers", 1, 20, attempts=2),
        make_step("create_topic", 21, 1),
        make_step("relay", 22, None),
    ]
    progress = describe_progress(steps, make_burndown(20), MINUTE)
    down = progress["burndown"]
    assert (down["source_lag"], down["temporary_lag"], down["left"]) == (20_000, 60_000, 80_000)
    assert (down["relayed_per_second"], down["handled_per_second"]) == (4000.0, 1000.0)
    assert (down["eta_seconds"], down["consumers"]) == (80.0, 30)
    assert progress["step"] == "relay"
    states = [step["state"] for step in progress["steps"]]
    assert states == ["done", "done", "done", "running"]
    assert [step["seconds"] for step in progress["steps"]] == [0.5, 20.0, 1.0, 38.0]
    for width in (80, 100):
        text = draw(render_progress(progress), width=width)
        assert max(len(line) for line in text.splitlines()) <= width
        for told in (
            "now: relay",
            "20,000 of 100,000",
            "80,000 left after 20 s",
            "20,000 left, 80,000 relayed, 4,000/s",
            "60,000 left, 20,000 handled, 1,000/s",
            "drained in about 1 min 20 s",
            "stop consumers",
            "2 attempts",
        ):
            assert told in text


def test_fault_27_nothing_moves_and_nothing_is_known() -> None:
    still = describe_progress([], make_burndown(0), MINUTE)
    assert still["burndown"]["eta_seconds"] is None
    assert still["burndown"]["relayed_per_second"] is None
    assert "not yet known when it is drained" in draw(render_progress(still))
    stuck = describe_progress([], make_burndown(20, relayed=0, handled=0), MINUTE)
    assert stuck["burndown"]["eta_seconds"] is None
    done = describe_progress([], make_burndown(200), MINUTE, live=False)
    assert done["burndown"]["left"] == 0
    assert len(done["burndown"]["curve"]) == 36
    text = draw(render_progress(done))
    assert "100 %" in text
    assert "drained in" not in text
    assert "no step has begun" in draw(render_progress(describe_progress([], (), MINUTE)))


def test_the_time_left_goes_by_the_last_seconds_of_the_step_at_work() -> None:
    # One consumer of the canary handled almost nothing for a long time: no rate of the drain.
    slow = [replace(sample, step="canary") for sample in make_burndown(60, relayed=1, handled=1)]
    fast = [
        replace(sample, at=sample.at + timedelta(seconds=61), step="drain")
        for sample in make_burndown(20)
    ]

    def tell_left(samples: list[BurndownSample]) -> float | None:
        left: float | None = describe_progress([], samples, MINUTE)["burndown"]["eta_seconds"]
        return left

    assert tell_left([*slow, *fast[:2]]) is None  # too short a time says nothing
    assert tell_left([*slow, *fast]) == 80.0
    # A run that was away: the time between is no work.
    late = [replace(sample, at=sample.at + timedelta(seconds=69)) for sample in make_burndown(1)]
    assert tell_left([*make_burndown(60, relayed=1, handled=1), *late]) is None
    # Producers were faster for a moment, and what was handled is counted again.
    back = replace(fast[-1], at=fast[-1].at + timedelta(seconds=1), handled=0, temporary_lag=99_999)
    down = describe_progress([], [*fast, back], MINUTE)["burndown"]
    assert (down["eta_seconds"], down["handled_per_second"]) == (None, 0.0)


def test_show_and_recoveries_take_both_kinds(desk: Workspace, verb: Verb) -> None:
    rebuild = store_plan(desk)
    expansion = store_expand_plan(desk)
    told = verb("recoveries").out
    assert rebuild.id in told
    assert expansion.id in told
    approve_plan(desk, expansion, by="ada")
    desk.ledger.recoveries.advance(expansion.id, RecoveryState.RUNNING, "ada")
    desk.ledger.steps.start(expansion.id, "stop_consumers")
    for sample in make_burndown(3):
        desk.ledger.burndown.add(replace(sample, recovery_id=expansion.id))
    told = verb("show", expansion.id).out
    assert "now: stop consumers" in told
    assert "97,000 left" in told
    assert "drained in about" in told
    desk.ledger.recoveries.advance(expansion.id, RecoveryState.FAILED, "ada")
    # At an end: the watch draws once and ends.
    assert "stop consumers" in verb("show", expansion.id, "--watch").out
    verb("show", expansion.id, "--watch", "--json", code=2)
    rejected = store_expand_plan(desk)
    told = verb("reject", rejected.id).out
    assert told == f"{rejected.id} rejected; the layout is as it was\n"


def test_why_a_plan_needs_its_retention_raised_by_now_is_said_as_it_is() -> None:
    week = 7 * 86_400.0
    written = {"seconds_to_drain_expanded": None, "seconds_to_loss": week}
    told = explain_missing_hold(make_expand_plan(produced_per_second=2_000.0, **written))
    assert "2,000/s are written by now, faster than 30 consumers" in told
    assert "(1,500/s)" in told
    assert "retention reaches" not in told
    told = explain_missing_hold(make_expand_plan(seconds_to_loss=600.0))
    assert "retention reaches the backlog in 10 min by now, and 30 consumers" in told
    told = explain_missing_hold(make_expand_plan(seconds_to_loss=None))
    assert "is not known" in told


Fingerprint = Callable[[Config, Stream], Mapping[str, Any]]


def fingerprint_expansion(config: Config, stream: Stream) -> dict[str, Any]:
    return fingerprint_with_consumers(config, stream, expand.FINGERPRINT)


KINDS: Mapping[str, Fingerprint] = {
    "rebuild": lambda _, stream: fingerprint_stream(stream, FINGERPRINT),
    "expand": fingerprint_expansion,
}
TEXT = """
clusters: {main: {bootstrap.servers: "localhost:9092"}}
sources: {shop: {url: "sqlite:///shop.db"}}
streams:
  orders:
    cluster: main
    topic: orders
    group: service
    consumers: {launcher: process, command: [python, -m, service], replicas: 2}
    source:
      database: shop
      table: orders
      primary_key: [order_id]
      time_column: updated_at
      message: {key: order_id, value: {json: [order_id]}}
      identity: {row: order_id, message: key}
      mutable: false
      stale: restate
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config.from_text(TEXT, tmp_path)


class NewerStream(Stream):
    """A stream as a newer program knows it: with a section and a switch that this one lacks."""

    archive: dict[str, str] = {"dir": "s3a://bucket"}  # noqa: RUF012 - pydantic copies it
    edge: str | None = None


@pytest.mark.parametrize("fingerprint", KINDS.values(), ids=KINDS)
def test_a_new_section_makes_no_approved_plan_stale(
    config: Config, fingerprint: Fingerprint
) -> None:
    stream = config.streams["orders"]
    newer = NewerStream.model_validate(stream.model_dump())
    planned = fingerprint(config, stream)
    assert planned
    assert find_changes(planned, fingerprint(config, newer)) == []


@pytest.mark.parametrize("fingerprint", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("name", ["off_peak", "approval", "auto_plan", "limits"])
def test_what_only_brakes_or_admits_makes_none_stale(
    config: Config, fingerprint: Fingerprint, name: str
) -> None:
    """Those take effect from the configuration: see test_approval.py."""
    assert name not in fingerprint(config, config.streams["orders"])


@pytest.mark.parametrize(
    ("kind", "changes", "told"),
    [
        ("rebuild", {"topic": "other"}, ["topic"]),
        ("rebuild", {"partitioner": "crc32"}, ["partitioner"]),
        ("rebuild", {"consumers": None, "expand": {"factor": 3}}, []),
        ("expand", {"group": "other"}, ["group"]),
        ("expand", {"expand": {"factor": 3}}, ["expand.factor"]),
        ("expand", {"source": None}, []),
        ("expand", {"consumers": None}, ["consumers"]),
    ],
)
def test_what_the_plan_was_computed_from_makes_it_stale(
    config: Config, kind: str, changes: dict[str, Any], told: list[str]
) -> None:
    stream = config.streams["orders"]
    data = {**stream.model_dump(), **changes}
    if isinstance(changes.get("expand"), dict):
        data["expand"] = {**stream.expand.model_dump(), **changes["expand"]}
    planned = KINDS[kind](config, stream)
    now = KINDS[kind](config, Stream.model_validate(data))
    assert find_changes(planned, now) == told


def test_how_long_is_waited_for_consumers_makes_no_expansion_stale(config: Config) -> None:
    """It may be changed while one is open: it decides no message."""
    stream = config.streams["orders"]
    planned = fingerprint_expansion(config, stream)
    data = stream.model_dump()
    data["consumers"] |= {"stop_within": "5m", "command_within": "1m"}
    later = Stream.model_validate(data)
    assert find_changes(planned, keep_waits(planned, fingerprint_expansion(config, later))) == []
    data["consumers"]["replicas"] = 7
    later = Stream.model_validate(data)
    told = find_changes(planned, keep_waits(planned, fingerprint_expansion(config, later)))
    assert told == ["consumers.replicas"]


def test_a_key_that_the_plan_does_not_know_counts_where_it_is_set() -> None:
    planned = {"source": {"table": "orders", "margin": 600}}
    assert find_changes(planned, {"source": {"table": "orders", "margin": 600, "edge": None}}) == []
    assert find_changes(
        planned, {"source": {"table": "orders", "margin": 600, "edge": "include"}}
    ) == ["source.edge"]
    assert find_changes(planned, {"source": {"table": "orders"}}) == ["source.margin"]
    assert find_changes({"source": None}, {"source": {"table": "orders"}}) == ["source"]


# Only brakes or admits a run, or is another kind's.
BRAKES = {
    "approval",
    "audits",
    "sequence",
    "auto_plan",
    "deliver",
    "formats",
    "limits",
    "mask",
    "off_peak",
    "redrive",
}
ELSEWHERE = {"rebuild": BRAKES | {"consumers", "expand"}, "expand": BRAKES | {"name", "source"}}


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_of_a_stream_is_on_one_of_the_lists(config: Config, kind: str) -> None:
    """A new key of a stream: does a plan of this kind depend on it?"""
    listed = set(KINDS[kind](config, config.streams["orders"]))
    assert listed | ELSEWHERE[kind] == set(Stream.model_fields)
    assert not listed & ELSEWHERE[kind]
