"""Names, reasons and errors are printed as they are; how a recovery stands without brokers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from backlogctl.clock import utc_now
from backlogctl.dags.task_context import RunbookError, translated_errors
from backlogctl.errors import BacklogError, KafkaFailure, Paused
from backlogctl.formats import format_plural
from backlogctl.ledger import BurndownSample
from backlogctl.monitoring.doctor.checks import CheckFinding, CheckLevel
from backlogctl.monitoring.verdict.status import PartitionStatus
from backlogctl.monitoring.verdict.summary import summarize_group
from backlogctl.replay.cli.shared import show
from backlogctl.replay.doctor.stream import Examination, describe_examinations
from backlogctl.replay.engine.approval import approve_plan
from backlogctl.replay.engine.cancelling import telling_standing
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.present.layout import Bar, spin
from backlogctl.replay.present.progress import describe_progress
from backlogctl.replay.present.report import make_report
from backlogctl.replay.present.report_page import render_page
from backlogctl.replay.present.status import (
    describe_gap,
    describe_recovery,
    describe_recovery_plan,
    describe_run,
    find_status,
    list_lines,
)
from backlogctl.replay.present.tables import render_examinations
from backlogctl.replay.present.terminal import (
    render_done,
    render_events,
    render_gaps,
    render_next,
    render_plan,
    render_progress,
    render_recoveries,
    render_status,
)
from backlogctl.replay.runbooks.descriptions import describe_body
from backlogctl.replay.web.page.recoveries import read_recovery
from backlogctl.replay.web.page.rendering import Renderer
from backlogctl.values import (
    Cause,
    Certainty,
    Chunk,
    Gap,
    GapState,
    LedgerEvent,
    Recovery,
    RecoveryState,
)
from tests.kit.ledger import NOON
from tests.kit.recoveries import make_step, open_desk, store_approved, store_expand_plan, store_plan
from tests.kit.shop import call_main
from tests.replay.conftest import Verb

ODD = "ann [/ops] [red] :smile:"


def draw(*things: Any, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    for thing in things:
        console.print(thing)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def draw_told(desk: Workspace, recovery: Recovery, width: int = 100) -> str:
    """The plan of a recovery as `plan` and `show` draw it."""
    return draw(render_plan(recovery, describe_recovery_plan(desk, recovery)), width=width)


def make_gap(number: int = 1) -> Gap:
    return Gap(
        f"g-20261121-{number:04}",
        "orders",
        "main",
        "orders",
        ODD,
        "id",
        12,
        1_000_000,
        2_000_000,
        Cause.EXPIRED,
        Certainty.EXACT,
        GapState.OPEN,
        None,
        None,
        NOON,
    )


def make_entry(name: str, verdict: str, **more: Any) -> dict[str, Any]:
    return {"stream": name, "group": "g", "verdict": verdict, "partitions": [], **more}


def test_of_many_streams_the_worst_comes_first_and_the_well_are_a_line() -> None:
    well = [make_entry(f"well-{number}", "ok") for number in range(9)]
    others = [
        make_entry("late", "losing", seconds_to_loss=9000.0),
        make_entry("warned", "ok", warnings=["a hold is not in force"]),
        make_entry("soon", "losing", seconds_to_loss=60.0),
        make_entry("gone", "lost", lost=7),
        make_entry("unseen", "unknown", error={"message": "no topic"}),
    ]
    text = draw(render_status({"streams": [*well, *others]}))
    places = [
        text.index(name) for name in ("gone", "soon", "late", "unseen", "warned", "9 streams")
    ]
    assert places == sorted(places)
    assert "9 streams: well-0, well-1, well-2, well-3, well-4, ..." in text
    assert "next: backlogctl status well-0" in text
    more = [make_entry(f"bad-{number:02}", "warn", sentence="is slow") for number in range(30)]
    text = draw(render_status({"streams": [*more, *well, *others]}))
    assert text.index("gone") < text.index("bad-05") < text.index("bad-29  warn  is slow")
    assert text.count("read by g") == 10
    assert "next: backlogctl status bad-07" in text
    assert "well-8" in draw(render_status({"streams": [*well, others[0]]})), "ten are shown whole"


def test_findings_of_many_streams_are_told_once() -> None:
    def examine(number: int) -> Examination:
        replicas = CheckFinding(
            *(
                "replication-factor",
                CheckLevel.LOSES,
                f"topic t-{number}",
                "it has 1 replica",
                "raise it",
            )
        )
        brokers = CheckFinding("examination", CheckLevel.WARNS, "the brokers", "one is slow", "")
        lone = CheckFinding("unread", CheckLevel.UNKNOWN, "topic t-3", "denied", "grant it")
        found = (replicas, brokers) if number != 3 else (replicas, brokers, lone)
        return Examination("stream", f"s-{number:02}", found if number < 12 else ())

    document = describe_examinations([examine(number) for number in range(20)])
    text = draw(render_examinations(document))
    assert "20 streams, of 8 of them nothing was found" in text
    assert text.count("it has 1 replica") == 1
    assert text.count("12 streams: s-00, s-01, s-02, s-03, s-04, ...") == 2
    assert text.index("replica") < text.index("denied") < text.index("slow"), "worst first"
    assert "next: backlogctl doctor s-00" in text


def test_foreign_text_is_not_markup(desk: Workspace) -> None:
    changes: dict[str, Any] = {"warnings": [ODD], "other_groups": [ODD], "deliver": "topic"}
    quarantine = {"count": 2, "reasons": {ODD: 2}}
    planned = store_plan(desk, **changes, outcome={"reasons": [ODD], "quarantine": quarantine})
    recovery = replace(planned, approved_by=ODD, approved_identity=ODD)
    desk.ledger.events.append(recovery.id, ODD, ODD, {"message": ODD})
    document = describe_recovery(desk, recovery)
    events = desk.ledger.events.list(recovery.id)
    unseen = {"stream": ODD, "group": ODD, "verdict": "unknown", "error": {"message": ODD}}
    gaps = [{**describe_gap(make_gap()), "cause": ODD, "stream": name} for name in (ODD, "x")]
    row = {**document, "stream": ODD, "kind": ODD}
    for thing, times in (
        (render_plan(recovery, describe_recovery_plan(desk, recovery)), 6),
        (render_events(events), 3),
        (render_status({"streams": [unseen]}), 3),
        (render_gaps({"gaps": gaps}), 3),
        (render_recoveries({"recoveries": [row, document]}), 2),
    ):
        # Cells may be wrapped: the words are counted, not the whole.
        assert draw(thing, width=300).count("[/ops]") >= times


def test_messages_of_verbs_are_not_markup(desk: Workspace, verb: Verb) -> None:
    recovery = store_plan(desk).id
    assert f"approved by {ODD} (" in verb("approve", recovery, "--by", ODD).out
    assert "[/ops]" in verb("show", recovery).out
    assert "recovery [/ops]: there is no such recovery" in verb("show", "[/ops]", code=2).err


def test_progress_texts_are_not_markup() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with spin(console) as tell:
        tell(ODD)
    bar = Bar(console, 10)
    bar.start()
    bar.say(ODD)
    bar.stop()
    assert "[/ops]" in str(console.file.getvalue())  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [80, 100])
def test_ids_and_numbers_are_whole(desk: Workspace, width: int) -> None:
    recovery = store_approved(desk)
    document = describe_recovery(desk, recovery)
    document["created_at"] = "2026-11-21T12:00:00.000000Z"
    several = render_gaps({"gaps": [describe_gap(make_gap(number)) for number in range(3)]})
    text = draw(several, render_recoveries({"recoveries": [document]}), width=width)
    assert text.count("g-20261121-000") == 3
    assert text.count("1,000,000–1,999,999") == 3
    assert text.count("expired, exact") == 3
    assert recovery.id in text
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= width


def test_bar_tells_rate_and_time_left_and_how_long_a_phase_takes() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    bar = Bar(console, 1_234_567)
    bar.start()
    bar.say("injecting")
    bar.move(34_567, rate=4999.6, eta=245.0)
    bar.stop()
    text = str(console.file.getvalue())  # type: ignore[attr-defined]
    assert "34,567 of 1,234,567 5,000/s, 4 min 5 s left" in text
    bar = Bar(console, 1_234_567)
    bar.start()
    bar.say("injecting")
    bar.move(34_567, rate=4999.6)
    bar.say("reading back")
    bar.stop()
    last = str(console.file.getvalue()).rpartition("reading back")[2]  # type: ignore[attr-defined]
    assert "/s" not in last, "what is read back has no rate, only a time"
    assert " s" in last


def test_one_is_not_several(desk: Workspace) -> None:
    assert format_plural(1, "message") == "1 message"
    assert format_plural(12_000, "stream") == "12,000 streams"
    assert describe_recovery(desk, store_plan(desk))["staging"] == "1 chunk, 1 byte"


def write(part: Callable[[Console], None]) -> str:
    console = Console(file=io.StringIO(), width=40)
    part(console)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_commands_and_results_are_one_line() -> None:
    command = "backlogctl plan rebuild a-stream-with-a-long-name --allow surplus"
    assert write(lambda console: show(console, render_next(command))) == f"next: {command}\n"
    told = ": 5 messages are in a topic with a long name, each once"
    done = write(lambda console: show(console, render_done("r-1", "verified", told)))
    assert done == f"r-1 verified{told}\n"


def test_a_plan_says_what_its_rules_rebuilt_differently(desk: Workspace) -> None:
    difference = {"identity": "'7'", "partition": 0, "offset": 3, "what": "value"}
    difference["detail"] = "differs in [spacing] only"
    proof = {"matched": 2, "differences": [difference] * 3}
    drawn = draw_told(desk, store_plan(desk, outcome={"proof": proof}))
    assert "50.0% of 4 survivors rebuilt as they are" in drawn
    assert drawn.count("'7': value differs in [spacing] only") == 2


def test_a_plan_says_what_is_ignored_and_what_could_be(desk: Workspace) -> None:
    ignored = {"what": "header", "name": "traceparent", "messages": 3, "ignored": True}
    judged = {"what": "field", "name": "ada@example.org", "messages": 2, "ignored": False}
    recovery = store_plan(desk, outcome={"proof": {"variations": [ignored, judged]}})
    drawn = " ".join(draw_told(desk, recovery).replace("│", "").split())
    assert "100 % of 4 survivors rebuilt as they are, but for what is ignored" in drawn
    told = "the header traceparent (tracing) differs in 3 of 4, and is ignored"
    assert told in drawn
    assert 'add `ignore_fields: ["ada@example.org"]` to `message`' in drawn
    approval = " ".join(describe_body(desk, recovery).split())
    assert told in approval
    assert "ada@example.org" not in approval, "names of fields may be data"
    # Plans of earlier programs have no variations.
    assert "but for what is ignored" not in draw_told(desk, store_plan(desk))


def test_status_links_to_the_page() -> None:
    """Where people reach the page is said under each stream."""
    part = PartitionStatus(0, 0, 5, 9, 4, None, 0)
    status = summarize_group(
        [part],
        stream="orders",
        cluster="main",
        topic="orders",
        group="g",
        group_state="stable",
        taken_at=NOON,
        written=[True],
    ).to_json()
    page = "https://b.example/streams/orders"
    text = draw(render_status({"streams": [{**status, "page": page}]}))
    assert "page: https://b.example/streams/orders" in text
    assert "orders: 4 behind" in text


COUNTS = {
    "rebuild": {
        *("expected", "candidates", "surviving", "consumed", "already_injected", "rebuilt"),
        *("collapsed", "quarantined", "surplus", "shortfall"),
    },
    "expand": {"lag", "lost", "canary", "consumers", "temporary_partitions"},
}
PARTITION = {"rebuild": {"partition", "expected", "rebuilt"}, "expand": {"partition", "lag"}}
RUN = {
    "rebuild": {"injected", "skipped", "left_out", "quarantined"},
    "expand": {"relayed", "handled", "drained_per_second"},
}


@pytest.mark.parametrize("kind", ["rebuild", "expand"])
def test_json_is_what_others_build_on(
    desk: Workspace,
    verb: Verb,
    kind: str,
) -> None:
    """What `plan`, `show`, `recoveries` and `run` print for programs, of each kind."""
    store = store_plan if kind == "rebuild" else store_expand_plan
    recovery = store(desk, warnings=["beware"])
    planned = describe_recovery(desk, recovery)  # what `plan` prints
    documents = [json.loads(json.dumps(planned)), verb("show", recovery.id, "--json").document]
    documents += verb("recoveries", "--json").document["recoveries"]
    for document in documents:
        assert (document["id"], document["kind"]) == (recovery.id, kind)
        assert (document["stream"], document["state"]) == ("orders", "planned")
        assert document["plan_hash"] == recovery.plan_hash
        assert document["verdict"] == {"rebuild": "exact", "expand": "wins"}[kind]
        assert COUNTS[kind] <= set(document["counts"])
        assert all(PARTITION[kind] <= set(row) for row in document["partitions"])
        assert document["partitions"]
        assert document["warnings"] == ["beware"]
        assert document["planned_by"] == {"kind": "os", "user": "planner", "host": "here"}
        assert document["planned_at"] == "2026-11-21T12:00:00.000000Z"
    run = describe_run(desk, recovery, {})
    assert (run["id"], run["state"]) == (recovery.id, "planned")
    assert set(run["counts"]) == RUN[kind]


def test_the_rate_of_the_proof_is_in_the_json(desk: Workspace) -> None:
    document = describe_recovery(desk, store_plan(desk, outcome={"proof": {"matched": 1}}))
    assert document["proof"]["rate"] == 0.25
    assert document["reasons"] == []


def test_what_is_subtracted_has_its_sign_and_a_difference_its_column(desk: Workspace) -> None:
    counts = {"candidates": 13, "surviving": 3, "rebuilt": 8, "shortfall": 2}
    text = draw_told(desk, store_plan(desk, outcome={"counts": counts}))
    assert "− 3  still in the topic" in text
    assert "2  shortfall" in text
    assert "handled by the consumer" not in text, "what is zero is left out"
    assert "difference" in text


@pytest.mark.parametrize("kind", ["rebuild", "expand"])
def test_a_plan_says_each_thing_once_and_times_to_the_second(desk: Workspace, kind: str) -> None:
    store = store_plan if kind == "rebuild" else store_expand_plan
    text = draw_told(desk, store(desk, other_groups=["audit"]))
    assert text.count("audit") == 1
    assert "consumers in normal times" not in text
    assert text.count("3 consumers") == (1 if kind == "expand" else 0)
    assert ("2026-11-20 22:15:00Z" in text) is (kind == "expand")
    assert "11-20 22:15Z" not in text


def test_a_run_of_a_rebuild_shows_its_steps_and_what_is_put_back(desk: Workspace) -> None:
    chunks = [Chunk(n, 0, 5, 9, "ab", "messages/x", "ids/x") for n in range(2)]
    recovery = store_plan(desk).id
    desk.ledger.chunks.add_all(recovery, chunks)
    desk.ledger.chunks.mark_injected(recovery, 0, 0, 900, 904)
    found = desk.ledger.chunks.list(recovery)
    steps = [make_step("check_target", 0, 2), make_step("inject", 2, None)]
    progress = describe_progress(steps, (), NOON + timedelta(seconds=9), chunks=found)
    assert progress["injection"] | {"staged": 10, "injected": 5} == progress["injection"]
    text = draw(render_progress(progress))
    assert "50 %  5 of 10" in text
    assert "now: inject" in text
    assert "✓  check target" in text


def test_the_record_names_steps_and_leaves_out_starts_that_came_to_an_end() -> None:
    lines: list[tuple[str, dict[str, Any]]] = [
        ("step started", {"step": "check_target"}),
        ("step completed", {"step": "check_target", "seconds": 2.0}),
        ("step started", {"step": "inject"}),
        ("failed", {"step": "inject", "message": "no broker"}),
        ("step started", {"step": "check_target"}),
    ]
    events = [
        LedgerEvent("r-20261121-0001", number, NOON, "ada", action, detail, "", "")
        for number, (action, detail) in enumerate(lines)
    ]
    text = draw(render_events(events))
    assert text.count("check target completed  2 s") == 1
    assert text.count("check target started") == 1, "it was begun again, and is not completed"
    assert "inject started" in text
    assert "at inject" in text
    assert "step started" not in text


def test_what_rows_hold_is_for_the_terminal_alone(desk: Workspace) -> None:
    """An approval is kept by its scheduler, and a page is seen by many."""
    differs = {"identity": "ada@example.org", "partition": 0, "offset": 3, "what": "value"}
    differs["detail"] = 'card is "4111", "5500" rebuilt'
    recovery = store_plan(desk, outcome={"proof": {"differences": [differs]}})
    assert "ada@example.org" in draw_told(desk, recovery)
    page = Renderer(desk.config.mask_secrets, utc_now, 30).render(
        "recovery.html",
        "../",
        view=read_recovery(desk, recovery, utc_now()),
        linked=True,
        reports=False,
        answers={},
        most=60,
    )
    report = render_page(make_report(desk, recovery.id))
    for text in (describe_body(desk, recovery), page, report):
        assert "100 % of 4 survivors" in text
        assert "ada@example.org" not in text
        assert "4111" not in text


S = RecoveryState


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setattr("backlogctl.replay.consumers.members.STANDING_SECONDS", 1.0)
    for module in ("groups", "topics", "readers"):
        monkeypatch.setattr(f"backlogctl.kafka.{module}.DEFAULT_SECONDS", 1.0)
    monkeypatch.setattr("backlogctl.replay.observe.stream.LOOK_SECONDS", 1.0)
    return open_desk(tmp_path)


def store_drain(away: Workspace, state: RecoveryState) -> Recovery:
    """An expansion whose 28,400 relayed messages were not handled when last looked at."""
    made = approve_plan(away, store_expand_plan(away), by="ada")
    ledger = away.ledger
    ledger.recoveries.advance(made.id, S.RUNNING, "op")
    for step in ("stop_consumers", "create_topic", "canary", "drain"):
        ledger.steps.start(made.id, step)
    topic = made.plan["temporary"]["topic"]
    ledger.temporary_topics.announce(made.id, "main", topic, 30)
    ledger.temporary_topics.record_id(made.id, "topic-id")
    at = utc_now() - timedelta(minutes=3)
    ledger.burndown.add(BurndownSample(made.id, at, "drain", 7, 28_400, 40_000, 11_600, 30))
    if state is not S.RUNNING:
        ledger.recoveries.advance(made.id, state, "op", {"message": "no broker answered"})
    return ledger.recoveries.get(made.id)


@pytest.mark.parametrize("state", [S.RUNNING, S.PAUSED, S.FAILED])
def test_what_the_brokers_do_not_say_is_unknown_and_never_zero(
    away: Workspace, state: RecoveryState
) -> None:
    recovery = store_drain(away, state)
    standing = find_status(away, recovery)
    assert standing is not None
    assert (standing["reads"], standing["recovery_consumers"]) == ("unknown", None)
    assert standing["stopped"] == "the 3 consumers of group service"
    assert standing["temporary"]["messages"] is None
    assert standing["temporary"]["last"]["messages"] == 28_400
    assert "127.0.0.1:1" in standing["problem"]
    told = dict(list_lines(standing))
    assert told["only in the temporary topic"].startswith("unknown; 28,400 at ")
    assert told["reads"] == "unknown"
    assert ("nobody works on it" in told["recovery"]) is (state is S.RUNNING)
    assert standing["next_commands"] == [f"backlogctl run {recovery.id}"]


def test_an_error_says_it_on_the_terminal_in_json_and_to_airflow(
    away: Workspace, tmp_path: Path
) -> None:
    recovery = store_drain(away, S.FAILED)
    with (
        pytest.raises(RunbookError) as failed,
        translated_errors(),
        telling_standing(away, recovery.id),
    ):
        raise KafkaFailure("no broker answered", subject="topic orders")
    message = str(failed.value)
    assert "stopped: the 3 consumers of group service" in message
    assert message.endswith(f"next: backlogctl run {recovery.id}")

    code, out, err = call_main(("cancel", recovery.id), tmp_path, {})
    assert code == 1, (out, err)
    assert "how things stand" in err
    assert "the 3 consumers of group service" in err
    assert err.rstrip().endswith(f"next: backlogctl cancel {recovery.id}")


def test_what_changed_nothing_or_is_over_has_no_standing(away: Workspace) -> None:
    planned = store_expand_plan(away)
    assert find_status(away, planned) is None
    with pytest.raises(Paused) as caught, telling_standing(away, planned.id):
        raise Paused("not now")
    assert caught.value.standing is None


def test_a_rebuild_says_what_was_put_back(away: Workspace) -> None:
    recovery = store_approved(away)
    away.ledger.recoveries.advance(recovery.id, S.RUNNING, "op")
    away.ledger.steps.start(recovery.id, "inject")
    away.ledger.chunks.add_all(recovery.id, [Chunk(0, 0, 5, 50, "a", "m", "i")])
    away.ledger.chunks.mark_injected(recovery.id, 0, 0, left_out=2)
    away.ledger.recoveries.advance(recovery.id, S.FAILED, "op")
    with pytest.raises(BacklogError) as caught, telling_standing(away, recovery.id):
        raise BacklogError("the topic is away")
    standing = caught.value.standing
    assert standing is not None
    # Without those that are left out.
    assert standing["put_back"] == {"done": 3, "planned": 8}
    assert (standing["reads"], standing["stopped"]) == ("originals", "")
    assert dict(list_lines(standing))["put back"] == "3 of 8 messages"


def test_status_says_it_while_the_brokers_are_away(away: Workspace, tmp_path: Path) -> None:
    recovery = store_drain(away, S.RUNNING)
    code, out, err = call_main(("status", "orders", "--json"), tmp_path, {})
    assert code == 1, err
    document = json.loads(out)
    assert document["error"]["code"] == "unreachable"
    assert document["standing"]["recovery"] == recovery.id
    assert document["standing"]["temporary"]["last"]["messages"] == 28_400
