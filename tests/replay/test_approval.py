"""Approvals are bound to a plan; `hold`; `pause`, `resume` and `cancel` beside each other."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from backlogctl.clock import Deadline, utc_now
from backlogctl.config import load_config
from backlogctl.errors import ApprovalNeeded, BacklogError, InvalidTransition, Refused
from backlogctl.fanout.disk import DiskCheck
from backlogctl.kafka.admin import alter_topic_config, read_topic_overrides
from backlogctl.kafka.log_dirs import LogDirs
from backlogctl.ledger import OPERATOR
from backlogctl.replay.cli import main
from backlogctl.replay.engine.approval import (
    SamePerson,
    approve_plan,
    check_approval,
    check_hash,
    reject_plan,
)
from backlogctl.replay.engine.cancelling import cancel_work, request_pause, withdraw_pause
from backlogctl.replay.engine.kind import TERMS_CHANGED, Workspace, choose_stricter
from backlogctl.replay.engine.next_commands import list_next_commands
from backlogctl.replay.engine.plan import Approver, acting_as, find_identity
from backlogctl.replay.engine.runner import check_startable
from backlogctl.replay.injection import ledger as fencing
from backlogctl.replay.observe import retention
from backlogctl.replay.observe.retention import hold_stream, release_due, release_stream
from backlogctl.replay.opening import open_workspace
from backlogctl.replay.present.document import list_event_lines
from backlogctl.replay.present.status import describe_recovery_plan
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.values import RecoveryState
from tests.conftest import MakeTopic
from tests.kit.kafka import properties_of
from tests.kit.recoveries import (
    PAST,
    change_ledger,
    open_desk,
    store_approved,
    store_plan,
    write_config,
)
from tests.kit.shop import Shop
from tests.replay.conftest import Verb

S = RecoveryState


def test_fault_63_expired_approval_is_renewed(desk: Workspace) -> None:
    approved = store_approved(desk)
    with pytest.raises(Refused, match="approved by ada already"):
        approve_plan(desk, approved, by="bob")
    change_ledger(desk, f"UPDATE backlog_recoveries SET approval_expires_at = '{PAST}'")
    expired = desk.ledger.recoveries.get(approved.id)
    with pytest.raises(ApprovalNeeded, match="expired") as caught:
        check_approval(expired)
    assert f"backlogctl approve {approved.id} --by NAME" in caught.value.hint
    assert list_next_commands(desk, expired) == [f"backlogctl approve {approved.id} --by NAME"]

    renewed = approve_plan(desk, expired, by="bob")
    assert (renewed.state, renewed.approved_by) == (S.APPROVED, "bob")
    check_approval(renewed)
    assert list_next_commands(desk, renewed) == [f"backlogctl run {approved.id}"]


def test_fault_63_renewal_is_checked_as_the_first_approval(desk: Workspace) -> None:
    approved = store_approved(desk)
    change_ledger(desk, f"UPDATE backlog_recoveries SET approval_expires_at = '{PAST}'")
    change_ledger(desk, "DROP TRIGGER backlog_recoveries_fixed")
    change_ledger(desk, "UPDATE backlog_recoveries SET plan = replace(plan, 'planner', 'x')")
    with pytest.raises(Refused, match="not the one its hash was made of"):
        approve_plan(desk, desk.ledger.recoveries.get(approved.id), by="bob")


def test_fault_63_work_that_began_in_time_goes_on(desk: Workspace) -> None:
    recovery = store_approved(desk).id
    running = desk.ledger.recoveries.advance(recovery, S.RUNNING, "op")
    later = utc_now() + timedelta(days=30)
    check_approval(running, later)
    with pytest.raises(Refused, match="it is running"):
        approve_plan(desk, running, by="bob", now=later)


def test_a_plan_that_cannot_be_approved_has_no_next_command(desk: Workspace) -> None:
    surplus = {"verdict": "surplus", "counts": {"surplus": 3}}
    refused = store_plan(desk, outcome=surplus)
    assert list_next_commands(desk, refused) == []
    allowed = store_plan(desk, outcome=surplus, options={"allow": ["surplus"]})
    assert list_next_commands(desk, allowed) == [f"backlogctl approve {allowed.id} --by NAME"]


def test_of_a_plan_whose_place_was_taken_the_newer_one_is_named(desk: Workspace) -> None:
    older, newer = store_plan(desk), store_plan(desk)
    with pytest.raises(Refused, match=f"cannot be run: the newer plan {newer.id}") as refused:
        check_startable(desk, desk.ledger.recoveries.get(older.id))
    assert refused.value.hint == f"see `backlogctl show {newer.id}`"
    (*_, last) = list_event_lines(desk.ledger.events.list(older.id))
    assert (last.action, last.detail) == (f"superseded by {newer.id}", "")


@pytest.mark.parametrize("state", [S.RUNNING, S.PAUSED, S.FAILED])
def test_a_cancel_that_failed_is_what_comes_next(
    desk: Workspace, state: RecoveryState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays asked for: a run would not go on with the work."""
    monkeypatch.setattr(fencing, "Deadline", lambda _: Deadline(1.0))
    recovery = store_approved(desk).id
    for each in dict.fromkeys((S.RUNNING, state)):
        desk.ledger.recoveries.advance(recovery, each, "ada")
    with pytest.raises(BacklogError):
        cancel_work(desk, recovery, wait=0)  # its cluster is not there
    found = desk.ledger.recoveries.get(recovery)
    assert (found.state, found.requested) == (state, "cancel")
    assert list_next_commands(desk, found) == [f"backlogctl cancel {recovery}"]


# What changes no message takes effect without a new plan.

STREAM: dict[str, Any] = {"cluster": "main", "topic": "orders", "group": "service"}
NIGHT = {"from": "00:30", "to": "06:00", "timezone": "Asia/Shanghai"}


def reopen(directory: Path, **keys: Any) -> Workspace:
    """The same ledger, another file."""
    return open_desk(directory, streams={"orders": {**STREAM, **keys}})


def test_deliver_window_and_limits_are_those_of_the_file(tmp_path: Path) -> None:
    desk = reopen(tmp_path)
    planned = store_plan(desk, other_groups=["audit"])
    with pytest.raises(Refused, match="audit"):
        approve_plan(desk, planned, by="ada")
    limits = {"messages_per_second": 500}
    desk = reopen(tmp_path, deliver="topic", off_peak=NIGHT, limits=limits)
    told = describe_recovery_plan(desk, planned).document
    assert told["limits"]["messages_per_second"] == 500
    assert told["off_peak"] == NIGHT
    approved = approve_plan(desk, planned, by="ada")
    check_hash(approved)
    assert approved.plan_hash == planned.plan_hash
    (event,) = [e for e in desk.ledger.events.list(planned.id) if e.action == TERMS_CHANGED]
    assert event.detail["for"] == "approve"
    assert event.detail["deliver"] == "topic"
    assert event.detail["off_peak"] == NIGHT
    assert "approval" not in event.detail, "as in the plan"


def test_a_plan_is_not_made_easier_to_approve(tmp_path: Path) -> None:
    planner = find_identity()
    who = {"kind": planner.kind, "user": planner.user, "host": planner.host}
    desk = reopen(tmp_path)
    strict = store_plan(desk, approval="second_person", planned_by=who)
    for name in ("named", "auto"):
        with pytest.raises(SamePerson):
            approve_plan(reopen(tmp_path, approval=name), strict, by="ada", identity=planner)
    loose = store_plan(desk, approval="named", planned_by=who)
    with pytest.raises(SamePerson):
        approve_plan(reopen(tmp_path, approval="second_person"), loose, by="ada", identity=planner)
    assert choose_stricter("auto", "named") == choose_stricter("named", "auto") == "named"


def test_a_recovery_that_is_over_shows_its_own_plan(tmp_path: Path) -> None:
    planned = store_plan(reopen(tmp_path))
    desk = reopen(tmp_path, off_peak=NIGHT)
    assert desk.plan_now(planned) != desk.plan_of(planned)
    desk.ledger.recoveries.advance(planned.id, S.REJECTED, actor="ada")
    over = desk.ledger.recoveries.get(planned.id)
    assert desk.plan_now(over) == desk.plan_of(over)


# Who acts, and who else must.

GRACE = Approver("airflow", "grace", "worker-1")
PLANNED_BY_GRACE = {"kind": "airflow", "user": "grace", "host": "scheduler"}


def test_the_account_is_not_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("USER", "LOGNAME", "USERNAME"):
        monkeypatch.setenv(name, "somebody-else")
    found = find_identity()
    assert (found.kind, found.user) == ("os", pwd.getpwuid(os.getuid()).pw_name)


def test_acting_ends_with_its_block_even_by_an_error() -> None:
    own = find_identity()
    with acting_as(GRACE):
        assert find_identity() == GRACE
        with pytest.raises(KeyError), acting_as(replace(GRACE, user="ada")):
            raise KeyError(str(find_identity()))
        assert find_identity() == GRACE
    assert find_identity() == own


def test_what_is_done_for_somebody_is_on_record_as_theirs(desk: Workspace) -> None:
    plan = store_plan(desk)
    with acting_as(GRACE):
        approve_plan(desk, plan, by="Grace Hopper")
        rejected = reject_plan(desk, store_plan(desk, topic="other"), by="Grace", reason="no")
    approved = desk.ledger.recoveries.get(plan.id)
    assert approved.approved_identity == "airflow:grace@worker-1"
    assert desk.ledger.events.list(rejected.id)[-1].actor == "airflow:grace@worker-1"
    assert desk.ledger.events.find_break(rejected.id) is None


def test_second_person_is_another_user_of_airflow(desk: Workspace) -> None:
    plan = store_plan(desk, approval="second_person", planned_by=PLANNED_BY_GRACE)
    with pytest.raises(SamePerson, match="another person must approve"):
        # On whatever host, and whatever name they give.
        approve_plan(desk, plan, by="Ada", identity=GRACE)
    assert desk.ledger.recoveries.get(plan.id).state is S.PLANNED
    ada = replace(GRACE, user="ada")
    approved = approve_plan(desk, plan, by="Grace", identity=ada)
    assert (approved.state, approved.approved_identity) == (S.APPROVED, "airflow:ada@worker-1")


def test_one_name_in_two_systems_is_not_known_to_be_one_person(desk: Workspace) -> None:
    plan = store_plan(desk, approval="second_person", planned_by=PLANNED_BY_GRACE)
    shell = Approver("os", "grace", "laptop")
    assert approve_plan(desk, plan, by="Grace", identity=shell).approved_by


def test_a_named_approval_may_be_the_planners_own(desk: Workspace) -> None:
    plan = store_plan(desk, planned_by=PLANNED_BY_GRACE)
    assert approve_plan(desk, plan, by="Grace", identity=GRACE).approved_by


@pytest.mark.parametrize("seen", ["0" * 64, ""])
def test_fault_63_an_answer_is_for_the_plan_that_was_shown(desk: Workspace, seen: str) -> None:
    plan = store_plan(desk)
    with pytest.raises(Refused, match="for another plan"):
        approve_plan(desk, plan, by="ada", plan_hash=seen)
    assert desk.ledger.recoveries.get(plan.id).state is S.PLANNED
    approved = approve_plan(desk, plan, by="ada", plan_hash=plan.plan_hash)
    assert approved.approved_hash == plan.plan_hash


def test_fault_63_the_hash_is_of_the_warnings_too(desk: Workspace) -> None:
    shown = store_plan(desk, warnings=["one"])
    stored = store_plan(desk, warnings=["two"])
    with pytest.raises(Refused, match="for another plan"):
        approve_plan(desk, stored, by="ada", plan_hash=shown.plan_hash)


def test_fault_44_of_two_answers_one_counts(desk: Workspace) -> None:
    plan = store_plan(desk)
    approve_plan(desk, plan, by="ada", plan_hash=plan.plan_hash)
    # What the second one was shown before is still `planned`.
    with pytest.raises(Refused, match="approved by ada"):
        approve_plan(desk, plan, by="grace", plan_hash=plan.plan_hash)
    assert desk.ledger.recoveries.get(plan.id).approved_by == "ada"


MS, BYTES = "retention.ms", "retention.bytes"
HOUR = 3_600_000
MARGIN = 600_000


class Desk:
    """A workspace whose stream `orders` is on a real topic that keeps an hour."""

    def __init__(self, directory: Path, bootstrap: str, topic: str, group: str) -> None:
        stream = {"cluster": "main", "topic": topic, "group": group}
        self.properties = properties_of(bootstrap)
        path = write_config(
            directory, clusters={"main": self.properties}, streams={"orders": stream}
        )
        self.workspace = open_workspace(load_config(path))
        self.stream = self.workspace.config.stream("orders")
        self.topic = topic

    def read(self) -> tuple[str | None, str | None]:
        found = read_topic_overrides(self.properties, self.topic, [MS, BYTES])
        return found[MS], found[BYTES]

    def make_due(self) -> None:
        change_ledger(self.workspace, f"UPDATE backlog_holds SET until = '{PAST}'")


@pytest.fixture
def holding(
    kafka: EmbeddedKafka,
    topic: MakeTopic,
    group: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Desk]:
    monkeypatch.chdir(tmp_path)
    name = topic(partitions=1, config={MS: str(HOUR), BYTES: "5000000"})
    made = Desk(tmp_path, kafka.bootstrap, name, group)
    yield made
    made.workspace.ledger.close()


def test_command_holds_shows_and_releases(shop: Shop) -> None:
    alter_topic_config(shop.properties, shop.topic, {MS: str(100 * HOUR)})
    held = shop.call("hold", "orders", "--for", "6h", "--json").document
    (one,) = held["holds"]
    assert (one["stream"], one["topic"], one["holder"]) == ("orders", shop.topic, "operator")
    assert (one["old"], one["raised"]) == ({MS: str(100 * HOUR)}, {MS: str(106 * HOUR + MARGIN)})
    assert held["disk"]["usable_bytes"] > 0
    assert "not known" in held["warnings"][0], "one sample tells no growth"

    shown = shop.call("hold").out
    assert "retention.ms" in shown
    assert "4 d 4 h" in shown
    assert "`backlogctl watch` gives it back then" in shown
    assert shop.call("hold", "orders", "--json").document["holds"] == [one]

    assert "released" in shop.call("hold", "orders", "--release").out
    assert read_topic_overrides(shop.properties, shop.topic, [MS]) == {MS: str(100 * HOUR)}
    assert shop.call("hold").out == "nothing is held\n"
    assert "no operator holds stream orders" in shop.call("hold", "orders", "--release").out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--for", "6h"], "name the stream"),
        (["--release"], "name the stream"),
        (["orders", "--for", "6h", "--release"], "exclude"),
        (["orders", "--for", "soon"], "6h"),
        (["orders", "--for", "0s"], "longer than zero"),
        (["order", "--for", "6h"], "orders"),
        (["orders", "--for", "6h", "--allow", "all"], "disk"),
    ],
)
def test_bad_usage(tmp_path: Path, verb: Verb, words: list[str], told: str) -> None:
    write_config(tmp_path)
    assert told in verb("hold", *words, code=2).err


def test_hold_is_extended_by_what_is_new(holding: Desk) -> None:
    first = hold_stream(holding.workspace, holding.stream, timedelta(hours=6)).hold
    assert first is not None
    assert holding.read() == (str(7 * HOUR + MARGIN), "-1")
    again = hold_stream(holding.workspace, holding.stream, timedelta(hours=8)).hold
    assert again is not None
    assert again.id == first.id
    kept = int(holding.read()[0] or 0) - (9 * HOUR + MARGIN)
    assert 0 <= kept < 60_000, "as if it had been held for eight hours from now on"
    shorter = hold_stream(holding.workspace, holding.stream, timedelta(hours=1)).hold
    assert shorter is not None
    assert shorter.until is not None
    assert again.until is not None
    assert shorter.until < again.until
    assert int(holding.read()[0] or 0) >= 9 * HOUR + MARGIN, "what is raised is not lowered"
    released, warnings = release_stream(holding.workspace, holding.stream)
    assert ([one.id for one in released], warnings) == ([first.id], [])
    assert holding.read() == (str(HOUR), "5000000")


def test_hold_that_is_due_is_given_back_by_the_next_command(
    holding: Desk, capfd: pytest.CaptureFixture[str]
) -> None:
    for command in (["hold"], ["status", "--json"], ["watch", "--rounds", "1"]):
        hold_stream(holding.workspace, holding.stream, timedelta(hours=1))
        assert holding.read()[1] == "-1"
        assert release_due(holding.workspace) == [], "not before its time"
        holding.make_due()
        assert main(command) == 0
        assert holding.read() == (str(HOUR), "5000000"), command
        assert f"retention of topic {holding.topic} was given back" in capfd.readouterr().err
        assert holding.workspace.ledger.holds.list() == ()


def test_what_somebody_changed_is_told_when_it_is_due(holding: Desk) -> None:
    hold_stream(holding.workspace, holding.stream, timedelta(hours=1))
    alter_topic_config(holding.properties, holding.topic, {MS: "7777777"})
    holding.make_due()
    (warning,) = release_due(holding.workspace)
    assert "somebody changed it" in warning
    assert holding.read() == ("7777777", "5000000")


def test_full_disks_refuse_a_hold_unless_allowed(
    holding: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = DiskCheck(2000, 1000, False, "each broker needs more")
    monkeypatch.setattr(retention, "estimate_hold", lambda *_, **__: full)
    with pytest.raises(Refused, match="would fill up: each broker needs more"):
        hold_stream(holding.workspace, holding.stream, timedelta(hours=1))
    assert holding.read() == (str(HOUR), "5000000")
    assert holding.workspace.ledger.holds.list() == ()
    held = hold_stream(holding.workspace, holding.stream, timedelta(hours=1), allow_full=True)
    assert held.warnings == ("the disks may fill up: each broker needs more",)
    assert holding.read()[1] == "-1"


def test_topic_that_keeps_everything_needs_no_hold(
    holding: Desk, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    alter_topic_config(holding.properties, holding.topic, {MS: "-1", BYTES: "-1"})
    monkeypatch.setattr(retention, "read_log_dirs", lambda *_: LogDirs(None, "nobody tells"))
    assert main(["hold", "orders", "--for", "6h"]) == 0
    assert "nothing deletes the messages" in capfd.readouterr().out
    assert holding.workspace.ledger.holds.list() == ()


def test_hold_of_an_unreachable_cluster_stays_and_is_told(tmp_path: Path) -> None:
    workspace = open_workspace(load_config(write_config(tmp_path)))
    held = workspace.ledger.holds.begin(
        stream="orders",
        cluster="gone",
        topic="orders",
        topic_id="id",
        holder=OPERATOR,
        old={MS: None},
        raised={MS: "5"},
        until=utc_now() - timedelta(minutes=1),
        actor="ada",
    )
    (told,) = release_due(workspace)
    assert "could not be" in told
    assert "no such cluster" in told
    assert workspace.ledger.holds.list() == (held,)


def start(desk: Workspace) -> str:
    recovery = store_approved(desk).id
    desk.ledger.recoveries.advance(recovery, S.RUNNING, "op")
    return recovery


def test_pause_does_not_overwrite_cancel(desk: Workspace) -> None:
    recovery = start(desk)
    with desk.ledger.leases.hold(recovery):
        desk.ledger.recoveries.request(recovery, "cancel", "ada")
        with pytest.raises(InvalidTransition, match="cancel was asked for"):
            request_pause(desk, recovery)
    # The runner died before it saw the request.
    with pytest.raises(Refused, match="to be cancelled"):
        request_pause(desk, recovery)
    found = desk.ledger.recoveries.get(recovery)
    assert (found.state, found.requested) == (S.RUNNING, "cancel")


def test_pause_taken_back_in_time_lets_the_runner_go_on(desk: Workspace) -> None:
    recovery = start(desk)
    with desk.ledger.leases.hold(recovery) as lease:
        request_pause(desk, recovery)
        found, runner = withdraw_pause(desk, recovery)
    assert (found.state, found.requested, runner) == (S.RUNNING, None, str(lease.owner))


def test_pause_that_the_runner_saw_first_needs_a_new_run(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovery = start(desk)
    ledger = desk.ledger
    real = ledger.leases.holder

    def look_and_stop(recovery_id: str) -> Any:
        holder = real(recovery_id)
        ledger.recoveries.advance(recovery_id, S.PAUSED, "runner", {"why": "operator"})
        return holder

    with ledger.leases.hold(recovery):
        request_pause(desk, recovery)
        monkeypatch.setattr(ledger.leases, "holder", look_and_stop)
        found, runner = withdraw_pause(desk, recovery)
    assert (found.state, runner) == (S.PAUSED, None), "nobody is told that it goes on by itself"
