"""Pages of recoveries: how they stand, what was changed, their past, offsets and urgency."""

from __future__ import annotations

import copy
import io
import logging
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from backlogctl.clock import format_time, utc_now
from backlogctl.config import Config
from backlogctl.ledger import BurndownSample, Owner
from backlogctl.monitoring.offsets.timeline import estimate_time
from backlogctl.monitoring.verdict.status import GroupStatus, PartitionStatus, Verdict
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.next_commands import LOOKED_AHEAD, STANDING, list_next_commands
from backlogctl.replay.engine.values import Readers, Reads
from backlogctl.replay.kinds import KINDS
from backlogctl.replay.present.progress import format_detail
from backlogctl.replay.present.status import describe_recovery, describe_recovery_plan
from backlogctl.replay.present.terminal import render_plan
from backlogctl.replay.web.page.app import HEADERS, make_headers
from backlogctl.replay.web.page.streams import (
    Kind,
    Segment,
    join_thin,
    map_partition,
    map_partitions,
    measure_ages,
    measure_left,
    read_history,
    sum_lag,
    thin,
)
from backlogctl.values import Gap, GapState, PartitionSample, Recovery, RecoveryState, Sample
from tests.kit.ledger import NOON, make_gap, make_sample
from tests.kit.recoveries import (
    change_ledger,
    make_expand_plan,
    make_rebuild_plan,
    make_recovery,
)
from tests.replay.web.page.night import ACTOR, NOW, Night, make_group
from tests.replay.web.page.visits import read, serve, strip


def fail_in_the_drain(night: Night) -> Recovery:
    """A drain that failed three minutes ago with 28,400 messages only in the temporary topic."""
    recovery = night.approve(night.plan(make_expand_plan()))
    night.ledger.recoveries.advance(recovery.id, RecoveryState.RUNNING, ACTOR)
    for step in ("check_source", "hold_retention", "stop_consumers", "create_topic", "canary"):
        night.ledger.steps.start(recovery.id, step)
        night.ledger.steps.complete(recovery.id, step)
    night.ledger.steps.start(recovery.id, "drain")
    topic = recovery.plan["temporary"]["topic"]
    night.ledger.temporary_topics.announce(recovery.id, "main", topic, 30)
    night.ledger.temporary_topics.record_id(recovery.id, "an-id")
    for second in range(0, 61, 2):
        relayed, handled = second * 14_000, second * 13_500
        left = 1_200_000 - relayed
        at = NOW - timedelta(seconds=240 - second)
        night.ledger.burndown.add(
            BurndownSample(recovery.id, at, "drain", left, relayed - handled, relayed, handled, 30)
        )
    detail = {
        "code": "consumer_came_back",
        "message": "a consumer came back while its backlog is relayed: order-service at 10.0.0.7",
    }
    night.ledger.recoveries.advance(recovery.id, RecoveryState.FAILED, ACTOR, detail)
    return recovery


def test_a_failed_expansion_says_who_is_stopped_and_what_is_only_in_its_topic(
    quiet: Night,
) -> None:
    recovery = fail_in_the_drain(quiet)
    words = strip(read(quiet, f"/recoveries/{recovery.id}"))
    assert "reads unknown" in words
    assert "stopped the 3 consumers of group service" in words
    assert "only in the temporary topic unknown; 30,000 at 2026-11-21 06:37:00" in words
    assert f"`backlogctl show {recovery.id}` does" in words
    assert f"next backlogctl run {recovery.id}" in words


def test_what_the_run_saw_when_it_ended_is_shown(quiet: Night) -> None:
    recovery = fail_in_the_drain(quiet)
    leave_on_record(quiet, recovery)
    words = strip(read(quiet, f"/recoveries/{recovery.id}"))
    assert "reads nobody" in words
    assert "at most 30,000 messages, in topic" in words
    assert "looked at 2026-11-21 06:40:00 UTC" in words
    quiet.ledger.events.append(recovery.id, ACTOR, LOOKED_AHEAD, {"message": "no loss in sight"})
    assert "reads nobody" in strip(read(quiet, f"/recoveries/{recovery.id}"))
    quiet.ledger.recoveries.advance(recovery.id, RecoveryState.RUNNING, ACTOR)
    assert "reads nobody" not in strip(read(quiet, f"/recoveries/{recovery.id}"))


def leave_on_record(night: Night, recovery: Recovery) -> None:
    """What a run that ended writes down: nobody reads, as the brokers said."""
    standing = KINDS.find(recovery).describe_standing(
        night.workspace, night.ledger.recoveries.get(recovery.id), ask=False
    )
    assert standing.only_there is not None
    seen = replace(
        standing,
        readers=Readers(Reads.NOBODY, 0, 0),
        only_there=replace(standing.only_there, messages=30_000),
        problem="",
    )
    night.ledger.events.append(recovery.id, ACTOR, STANDING, seen.to_json())


# Names no stream: plans are told as they are stored.
CONFIG = Config.from_text("{}", Path())
PAYLOAD = "card=4111111111111111"


def list_places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a plan."""
    inside: Any = ()
    if isinstance(value, dict):
        inside = value.items()
    elif isinstance(value, list):
        inside = enumerate(value)
    for name, item in inside:
        yield (*at, name)
        yield from list_places(item, (*at, name))


PLANS: Mapping[str, dict[str, Any]] = {
    "expand": make_expand_plan().dump(),
    "rebuild": make_rebuild_plan(
        gaps=[{"id": "g-1", "partition": 0, "start": 1, "end": 5}],
        off_peak={"from": "00:30", "to": "06:00", "timezone": "UTC"},
    ).dump(),
}


@given(
    st.sampled_from([(kind, at) for kind, plan in PLANS.items() for at in list_places(plan)]),
    st.sampled_from([None, "", "text", -1, 0, 1.5, [], [None], {}, True]),
)
@example(("expand", ("version",)), [])
@example(("rebuild", ("options", "allow")), 1.5)
@example(("expand", ("options", "allow")), "text")
def test_whatever_stands_in_a_plan_it_is_told_or_refused(
    place: tuple[str, tuple[Any, ...]], odd: Any
) -> None:
    kind, (*way, last) = place
    plan = copy.deepcopy(PLANS[kind])
    inside: Any = plan
    for name in way:
        inside = inside[name]
    inside[last] = odd
    recovery = Recovery(
        id="r-1",
        kind=kind,
        stream="orders",
        cluster="main",
        topic="orders",
        group="service",
        state=RecoveryState.RUNNING,
        plan=plan,
        plan_hash="",
        created_at=NOW,
    )
    # Neither is asked: only the plan is read.
    workspace = Workspace(CONFIG, cast("Any", None), KINDS)
    document = describe_recovery(workspace, recovery)
    if "problem" in document:
        assert document["plan"] == plan
        return
    drawn = io.StringIO()
    Console(file=drawn, width=100).print(
        render_plan(recovery, describe_recovery_plan(workspace, recovery))
    )
    assert recovery.id in drawn.getvalue()


@pytest.mark.parametrize("kind", PLANS)
def test_the_same_plans_are_told_as_they_are(kind: str) -> None:
    """The test above would pass where every plan is refused."""
    plan = make_rebuild_plan() if kind == "rebuild" else make_expand_plan()
    workspace = Workspace(CONFIG, cast("Any", None), KINDS)
    document = describe_recovery(workspace, make_recovery(plan))
    assert "problem" not in document


def test_a_time_that_cannot_be_read_is_told_as_it_is() -> None:
    assert format_detail({"expires_at": "in a while"}) == "expires in a while"


def test_why_is_told_once() -> None:
    paused = {"why": "interrupted", "message": "interrupted; what was open is aborted"}
    assert format_detail(paused) == paused["message"]
    assert format_detail({"why": "window"}) == "window"


def test_the_text_of_an_error_of_the_program_is_not_shown(quiet: Night) -> None:
    recovery = quiet.plan(make_rebuild_plan())
    quiet.approve(recovery)
    quiet.advance(recovery, RecoveryState.RUNNING)
    told = {"code": "bug", "message": f"ValueError: {PAYLOAD}", "subject": "", "step": "inject"}
    quiet.advance(recovery, RecoveryState.FAILED, **told)
    for path in (f"/recoveries/{recovery.id}", "/", "/streams/orders"):
        assert PAYLOAD not in read(quiet, path)
    words = strip(read(quiet, f"/recoveries/{recovery.id}"))
    assert words.count("an error of the program") == 2, "at the top, and in the record"
    assert "at step inject" in words


def test_a_fault_of_the_program_has_a_page_and_its_headers(
    quiet: Night, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Workspace, __: Recovery) -> list[str]:
        raise RuntimeError(PAYLOAD)

    for module in ("backlogctl.replay.web.page.app", "backlogctl.replay.present.document"):
        monkeypatch.setattr(f"{module}.list_next_commands", fail)
    recovery = quiet.plan(make_rebuild_plan())
    client = serve(quiet)
    for path in ("/", "/streams/orders", f"/recoveries/{recovery.id}"):
        with caplog.at_level(logging.ERROR):
            answer = client.get(path)
        assert answer.status_code == 500
        assert "This page cannot be made" in answer.text
        assert PAYLOAD not in answer.text
        assert "Traceback" not in answer.text
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
        assert f"the page at {path!r}" in caplog.text


def test_it_may_be_shown_in_the_frames_that_are_named(quiet: Night) -> None:
    sites = ("'self'", "https://wiki.example:8443")
    told = serve(quiet, frame_ancestors=sites).get("/").headers["content-security-policy"]
    assert told.endswith("frame-ancestors 'self' https://wiki.example:8443")
    assert make_headers(())["Content-Security-Policy"].endswith("frame-ancestors 'none'")
    for wrong in ("", "a b", "*; script-src *", "a,b"):
        with pytest.raises(ValueError, match="frame_ancestors"):
            make_headers([wrong])


STEP = timedelta(minutes=1)


def take(minute: int, *parts: tuple[int | None, int]) -> Sample:
    """Partitions as (committed, end)."""
    rows = (PartitionSample(n, 0, at, end, end) for n, (at, end) in enumerate(parts))
    return Sample("s", "c", "t", "g", "id", NOON + minute * STEP, tuple(rows))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12))
def test_ages_are_those_of_the_timeline(moves: list[tuple[int, int]]) -> None:
    samples: list[Sample] = []
    committed = end = 0
    for minute, (written, handled) in enumerate(moves):
        end += written
        committed = min(end, committed + handled)
        samples.append(take(minute, (committed, end)))

    for at, age in measure_ages(samples, samples, "read_committed"):
        sample = next(one for one in samples if one.taken_at == at)
        part = sample.partitions[0]
        assert part.committed is not None
        if part.committed == part.high:
            assert age == 0
            continue
        written_at = estimate_time(samples, 0, part.committed, "id")
        if written_at is None:
            assert age is None
        else:
            assert age is not None
            assert abs(age - (at - written_at).total_seconds()) < 0.001


def test_the_oldest_partition_counts_and_an_unknown_age_is_told_as_such() -> None:
    samples = [take(0, (0, 0), (0, 0)), take(10, (0, 10), (10, 10)), take(20, (0, 10), (10, 20))]
    ages = [age for _, age in measure_ages(samples, samples, "read_committed")]
    assert ages == [0, 9 * 60, 19 * 60]

    late = samples[1:]
    assert [age for _, age in measure_ages(late, late, "read_committed")] == [None, None]


def test_lag_is_of_the_partitions_with_a_commit() -> None:
    assert sum_lag(take(0, (4, 10), (None, 0)), "read_committed") == 6
    assert sum_lag(take(0, (4, 10), (None, 50)), "read_committed") is None
    assert sum_lag(take(0, (None, 50)), "read_committed") is None


def test_thinning_keeps_the_ends_and_spreads_the_rest() -> None:
    samples = [make_sample(NOON + n * STEP) for n in range(1000)]
    kept = thin(samples, 100)
    assert len(kept) <= 100
    assert (kept[0], kept[-1]) == (samples[0], samples[-1])
    gaps = {b.taken_at - a.taken_at for a, b in pairwise(kept)}
    assert max(gaps) <= 12 * STEP
    assert thin(samples[:7], 100) == samples[:7]


def test_what_is_left_is_the_retention_without_the_age() -> None:
    ages = ((NOON, 0.0), (NOON + STEP, 50.0), (NOON + 2 * STEP, None), (NOON + 3 * STEP, 70.0))
    left = [seconds for _, seconds in measure_left(ages, timedelta(seconds=60))]
    assert left == [60, 10, None, 0]

    samples = [take(0, (0, 0)), take(10, (0, 10)), take(20, (0, 20))]
    drawn = read_history(samples, "read_committed", timedelta(hours=1), NOON)
    assert drawn.left is not None
    assert "until retention deletes" in drawn.left.caption
    assert read_history(samples, "read_committed", None, NOON).left is None


OFFSET = st.integers(0, 60)


def make_part(low: int, committed: int | None, end: int, number: int = 0) -> PartitionStatus:
    return PartitionStatus(number, low, committed, end, None, None, None)


def show(part: PartitionStatus, *gaps: Gap, first_low: int | None = None) -> list[tuple[str, int]]:
    found = map_partition(part, gaps, first_low)
    return [(segment.kind.value, segment.count) for segment in found.segments]


def test_each_kind_has_its_place() -> None:
    lost = replace(make_gap(10, 30), id="a")
    back = replace(make_gap(40, 45), id="b", state=GapState.VERIFIED)
    waived = replace(make_gap(45, 47), id="c", state=GapState.WAIVED)

    assert show(make_part(60, 80, 100), lost, back, waived, first_low=5) == [
        ("gone", 5),
        ("lost", 20),
        ("gone", 10),
        ("back", 5),
        ("waived", 2),
        ("gone", 13),
        ("read", 20),
        ("unread", 20),
    ]


def test_what_expired_unread_is_lost_before_a_gap_is_written_down() -> None:
    assert show(make_part(60, 40, 100)) == [("lost", 20), ("unread", 40)]


def test_skipped_messages_are_lost_where_they_still_are() -> None:
    assert show(make_part(0, 80, 100), make_gap(20, 50)) == [
        ("read", 20),
        ("lost", 30),
        ("read", 30),
        ("unread", 20),
    ]


def test_without_a_commit_nothing_is_known() -> None:
    assert show(make_part(10, None, 30), first_low=0) == [("gone", 10), ("unknown", 20)]
    assert show(make_part(0, None, 0)) == [], "and nothing was written"


def test_a_settled_gap_long_ago_does_not_stretch_the_bar() -> None:
    old = replace(make_gap(0, 10), state=GapState.VERIFIED)
    assert show(make_part(1000, 1050, 1100), old) == [("read", 50), ("unread", 50)]


def test_bars_share_a_scale_and_ignore_other_topics_of_the_name() -> None:
    sample = make_sample()
    other = make_gap(0, 50, topic_id="an earlier topic")
    short, long = map_partitions(
        [make_part(90, 95, 100), make_part(0, 5, 100, 1)], [other], [sample], "orders-service"
    )

    assert (short.total, long.total) == (100, 100), "the sample saw partition 0 from 0 on"
    assert Kind.LOST not in {segment.kind for segment in short.segments}
    (alone,) = map_partitions([make_part(90, 95, 100)], [], [], "orders-service")
    assert (alone.padding, alone.share(5)) == (0, "500.00")


@given(OFFSET, st.none() | OFFSET, OFFSET, st.lists(st.tuples(OFFSET, OFFSET, st.booleans())))
def test_segments_cover_all_once(
    low: int, committed: int | None, end: int, ranges: list[tuple[int, int, bool]]
) -> None:
    gaps = [
        replace(
            make_gap(min(a, b), max(a, b) + 1), state=GapState.VERIFIED if done else GapState.OPEN
        )
        for a, b, done in ranges
    ]
    found = map_partition(make_part(low, committed, end), gaps)

    cursor = found.oldest
    for segment in found.segments:
        assert segment.start == cursor
        assert segment.count > 0
        cursor = segment.end
    assert cursor == found.end == max(end, low)
    assert all(a.kind is not b.kind for a, b in pairwise(found.segments))
    if not gaps and committed is not None:
        unread = sum(s.count for s in found.segments if s.kind is Kind.UNREAD)
        assert unread == max(0, end - max(committed, low))


def test_of_gaps_that_overlap_the_first_one_counts() -> None:
    first = replace(make_gap(20, 30), id="a", state=GapState.WAIVED)
    second = replace(make_gap(10, 40), id="b", state=GapState.VERIFIED)
    wanted = [("back", 10), ("waived", 10), ("back", 10), ("read", 10), ("unread", 50)]
    part = make_part(10, 50, 100)
    assert show(part, first, second) == wanted
    assert show(part, second, first) == [("back", 30), ("read", 10), ("unread", 50)]


def test_what_is_too_thin_to_see_is_drawn_as_the_worst_in_it() -> None:
    wide, thin = 1000, 1
    cuts = [Segment(Kind.GONE, 0, wide)]
    for number in range(50):
        start = wide + 2 * number
        cuts += [
            Segment(Kind.LOST, start, start + thin),
            Segment(Kind.GONE, start + thin, start + 2),
        ]
    end = wide + 100
    cuts.append(Segment(Kind.READ, end, end + wide))
    joined = join_thin(cuts, 10)
    assert [(one.kind, one.start, one.end, one.mixed) for one in joined] == [
        (Kind.GONE, 0, 1000, False),
        (Kind.LOST, 1000, 1100, True),
        (Kind.READ, 1100, 2100, False),
    ]
    alone = [cuts[0], Segment(Kind.LOST, 1000, 1001), Segment(Kind.READ, 1001, 2100)]
    assert join_thin(alone, 10) == tuple(alone), "a thin one between others is seen"


def test_many_gaps_cost_little_to_draw() -> None:
    gaps = [replace(make_gap(10 * n, 10 * n + 1), id=f"g{n:05}") for n in range(20_000)]
    part = make_part(200_000, 200_000, 200_100)
    start = time.thread_time()  # other threads of these tests work meanwhile
    (found,) = map_partitions([part], gaps, [make_sample()], "orders-service")
    assert time.thread_time() - start < 5, "the more gaps, the more for each of them"
    assert len(found.segments) <= 2000
    assert found.told.startswith("partition 0: partly lost: never read 0 to ")


@given(
    st.lists(st.tuples(st.sampled_from(Kind), st.integers(1, 40)), max_size=30), st.integers(1, 60)
)
def test_joined_segments_cover_the_same_and_hide_no_loss(
    runs: list[tuple[Kind, int]], thin: int
) -> None:
    segments, cursor = [], 0
    for kind, count in runs:
        segments.append(Segment(kind, cursor, cursor + count))
        cursor += count
    joined = join_thin(segments, thin)
    assert [one.end for one in joined[:-1]] == [one.start for one in joined[1:]]
    assert sum(one.count for one in joined) == cursor
    assert all(a.kind is not b.kind for a, b in pairwise(joined))
    for lost in (one for one in segments if one.kind is Kind.LOST):
        at = next(one for one in joined if one.start <= lost.start < one.end)
        assert at.kind is Kind.LOST


HOLD = "backlogctl hold orders --for 6h"


def make_losing(course: str = "losing", verdict: str = "lost", **changes: Any) -> GroupStatus:
    commands = (HOLD, "backlogctl plan expand orders")
    status = make_group("orders-service", "orders", verdict, 500, 100, 6_780.0)
    told: dict[str, Any] = {
        "stream": "orders",
        "course": Verdict(course),
        "next_commands": commands,
        **changes,
    }
    return replace(status, **told)


@pytest.mark.parametrize(("course", "verdict"), [("losing", "lost"), ("losing", "losing")])
def test_a_loss_to_come_stands_before_an_unrelated_plan(
    quiet: Night, course: str, verdict: str
) -> None:
    quiet.board.put_stream(make_losing(course, verdict))
    recovery = quiet.plan(make_rebuild_plan())
    wanted = f"next {HOLD} then backlogctl approve {recovery.id} --by NAME"
    for path in ("/", "/streams/orders"):
        assert wanted in strip(read(quiet, path))


def test_without_a_loss_to_come_the_recovery_is_what_is_next(quiet: Night) -> None:
    expand = ("backlogctl plan expand orders",)
    quiet.board.put_stream(make_losing("warn", next_commands=expand))
    recovery = quiet.plan(make_rebuild_plan())
    words = strip(read(quiet, "/"))
    assert f"next backlogctl approve {recovery.id} --by NAME" in words
    assert HOLD not in words


def test_where_airflow_asks_its_link_takes_the_place_of_the_command(quiet: Night) -> None:
    """Nobody can type a command there; an approval that expired, or a hold, has no question."""
    quiet.board.put_stream(make_losing())
    recovery = quiet.plan(make_rebuild_plan())
    link = "/dags/recover_backlog/runs/one/tasks/rebuild.approve/required_actions"

    def ask(one: Recovery) -> str:
        return link if one.state is RecoveryState.PLANNED else ""

    paths = ("/", "/streams/orders", f"/recoveries/{recovery.id}")
    answer = f'<a href="{link}" target="_top">answer it in Airflow</a>'
    for path in paths:
        page = read(quiet, path, find_approval=ask)
        assert answer in page
        assert "backlogctl approve" not in page
        assert (HOLD in page) is (path != paths[-1])
    expired = utc_now() - timedelta(hours=1)
    plan_hash = recovery.plan_hash
    quiet.ledger.recoveries.approve(recovery.id, "Grace", ACTOR, plan_hash, expired)
    for path in paths:
        page = read(quiet, path, find_approval=ask)
        assert f"backlogctl approve {recovery.id} --by NAME" in page
        assert "answer it in Airflow" not in page


@pytest.mark.parametrize(
    ("kind", "state", "minutes", "urgent"),
    [
        ("expand", RecoveryState.RUNNING, 5, False),
        ("expand", RecoveryState.RUNNING, -5, True),
        ("expand", RecoveryState.RUNNING, None, True),
        ("expand", RecoveryState.PAUSED, 5, True),
        ("rebuild", RecoveryState.RUNNING, 5, True),
    ],
)
def test_only_an_expansion_that_runs_is_help_already(
    quiet: Night, kind: str, state: RecoveryState, minutes: int | None, urgent: bool
) -> None:
    """Another expansion would be refused, so none is named."""
    plan = make_expand_plan() if kind == "expand" else make_rebuild_plan()
    made = quiet.approve(quiet.plan(plan))
    quiet.advance(made, RecoveryState.RUNNING)
    if state is not RecoveryState.RUNNING:
        quiet.advance(made, state)
    if minutes is not None:
        quiet.ledger.leases.acquire(made.id, Owner.current(), timedelta(hours=1))
        until = quiet.now + timedelta(minutes=minutes)
        statement = "UPDATE backlog_recoveries SET lease_until = :until"
        change_ledger(quiet.workspace, statement, until=format_time(until))
    quiet.board.put_stream(make_losing())
    (command,) = list_next_commands(quiet.workspace, quiet.ledger.recoveries.get(made.id))
    words = strip(read(quiet, "/streams/orders"))
    assert (f"next {HOLD} then {command}" if urgent else f"next {command}") in words
    assert "plan expand" not in words


def test_a_time_to_loss_is_loud_whatever_the_verdict(quiet: Night) -> None:
    quiet.board.put_stream(make_losing("stop", "lost"))
    assert re.search(r'data-label="loss in" class="num loud">1 h 53 min', read(quiet, "/"))
    assert re.search(r'<div class="loud"><dt>loss in', read(quiet, "/streams/orders"))
    quiet.board.put_stream(make_losing("stop", "lost", seconds_to_loss=None))
    assert 'data-label="loss in" class="num">—' in read(quiet, "/")
