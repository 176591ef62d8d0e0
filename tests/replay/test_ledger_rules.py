"""A recovery whose Kafka ledger is gone, and the runner's states."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from backlogctl.errors import (
    ConfigurationError,
    LeaseHeld,
    Paused,
    PlanStale,
    ProducerFenced,
    Refused,
)
from backlogctl.kafka.admin import describe_topic
from backlogctl.kafka.errors import TopicMissing
from backlogctl.replay.engine import cancelling as cancellation
from backlogctl.replay.engine import runner
from backlogctl.replay.engine.approval import approve_plan
from backlogctl.replay.engine.brakes import CancelRequested
from backlogctl.replay.engine.cancelling import cancel_work
from backlogctl.replay.engine.kind import RunContext, Workspace
from backlogctl.replay.engine.runner import Run
from backlogctl.replay.injection import ledger as injection
from backlogctl.replay.injection.ledger import LEDGER_MADE, fence_recovery, freeze_ledger
from backlogctl.replay.injection.plan import PlannedTarget, To
from backlogctl.replay.kinds.rebuild.kind import KIND as REBUILD
from backlogctl.replay.kinds.rebuild.kind import Rebuild
from backlogctl.replay.kinds.rebuild.plan import RebuildPlan
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill.injection.ledger_topic import CommittedChunk
from backlogctl.spark_backfill.injection.snapshots import LedgerSnapshot
from backlogctl.spark_backfill.request import PriorChunk
from backlogctl.values import Chunk, Recovery, RecoveryState
from tests.kit.recoveries import (
    LEDGER,
    find_detail,
    open_desk,
    read_actions,
    store_approved,
    store_expand_plan,
    store_plan,
    take_over,
    write_config,
)
from tests.replay.test_rights import store_mystery

S = RecoveryState


def set_ledger(
    monkeypatch: pytest.MonkeyPatch, now: LedgerSnapshot | None, *recoveries: str
) -> None:
    """What the cluster has; None for no ledger topic.

    Args:
        recoveries: whose first chunk has its record there.
    """
    records = [CommittedChunk(one, "orders", 0, 0, "", "ab", 5, "", 0, 0) for one in recoveries]

    def snapshot(*_: Any) -> LedgerSnapshot:
        if now is None:
            raise TopicMissing("it is not there", subject="topic ledger")
        return now

    monkeypatch.setattr(injection, "snapshot_ledger", snapshot)
    monkeypatch.setattr(injection, "read_committed_chunks", lambda *_: records)


def put_back_some(desk: Workspace, **changes: Any) -> str:
    """A recovery that injected one of its two chunks."""
    recovery = store_approved(desk, **changes).id
    chunks = [Chunk(0, n, 5, 50, "ab", f"messages/{n}", f"ids/{n}") for n in (0, 1)]
    desk.ledger.chunks.add_all(recovery, chunks)
    desk.ledger.chunks.mark_injected(recovery, 0, 0)
    return recovery


def test_first_plan_needs_no_ledger_topic(desk: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    set_ledger(monkeypatch, None)
    store_plan(desk, ledger_topic=None)
    assert freeze_ledger(desk, desk.config.stream("orders")) == (None, ())


# The same topic without the records: somebody deleted them (fault 132).
@pytest.mark.parametrize("now", [None, replace(LEDGER, topic_id="recreated"), LEDGER])
def test_ledger_that_is_gone_is_not_taken_for_nothing_injected(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch, now: LedgerSnapshot | None
) -> None:
    recovery = put_back_some(desk)
    stream = desk.config.stream("orders")
    set_ledger(monkeypatch, LEDGER, recovery)
    assert freeze_ledger(desk, stream) == (LEDGER, (PriorChunk(recovery, 0, 0),))
    set_ledger(monkeypatch, now)
    with pytest.raises(Refused, match=f"what {recovery} put into topic orders is") as caught:
        freeze_ledger(desk, stream)
    assert "--allow ledger" in caught.value.hint
    _, prior = freeze_ledger(desk, stream, {"ledger"})
    assert prior == (PriorChunk(recovery, 0, 0),), "the copy in SQL"


def test_ledger_that_a_run_made_is_remembered(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovery = put_back_some(desk, ledger_topic=None)
    desk.ledger.events.append(recovery, "op", LEDGER_MADE, LEDGER.to_json())
    set_ledger(monkeypatch, LEDGER, recovery)
    assert freeze_ledger(desk, desk.config.stream("orders"))[1] == (PriorChunk(recovery, 0, 0),)
    set_ledger(monkeypatch, None)
    with pytest.raises(Refused, match="is gone"):
        freeze_ledger(desk, desk.config.stream("orders"))


def test_what_went_into_a_topic_that_was_deleted_since_is_not_there(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known by its id; what no plan tells of counts as put back."""
    target = PlannedTarget(to=To.OTHER, topic="other", topic_id="old", partitions=2)
    recovery = put_back_some(desk, target=target)
    set_ledger(monkeypatch, LEDGER)
    committed = [
        CommittedChunk(one, "other", 0, 0, "", "", 5, "", 0, 0) for one in (recovery, "r-unknown")
    ]
    monkeypatch.setattr(injection, "read_committed_chunks", lambda *_: committed)
    stream = desk.config.stream("orders")
    ours, unknown = PriorChunk(recovery, 0, 0), PriorChunk("r-unknown", 0, 0)
    assert freeze_ledger(desk, stream, (), "other", "old")[1] == (ours, unknown)
    assert freeze_ledger(desk, stream, (), "other", "new")[1] == (unknown,)
    assert freeze_ledger(desk, stream, (), "other")[1] == (ours, unknown)


class Fencing:
    """What `fence_slots` was asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int], LedgerSnapshot | None]] = []

    def __call__(
        self, _: Any, prefix: str, topic: str, slots: Iterable[int], **settings: Any
    ) -> None:
        self.calls.append((prefix, list(slots), settings["ledger"]))


@pytest.fixture
def fencing(monkeypatch: pytest.MonkeyPatch) -> Fencing:
    fencing = Fencing()
    monkeypatch.setattr("backlogctl.spark_backfill.injection.transactional.fence_slots", fencing)
    return fencing


def test_fencing_uses_the_prefix_of_the_plan(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch, fencing: Fencing
) -> None:
    monkeypatch.setattr(injection, "check_ledger", lambda *_: None)
    assert desk.config.kafka_ledger.transactional_prefix != "frozen"
    fence_recovery(desk, store_approved(desk))
    assert fencing.calls == [("frozen", [0, 1], LEDGER)]


def test_recovery_whose_ledger_is_gone_is_fenced_without_a_record(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch, fencing: Fencing
) -> None:
    def check(*_: Any) -> None:
        raise PlanStale("the ledger was deleted", subject="topic ledger")

    monkeypatch.setattr(injection, "check_ledger", check)
    recovery = store_approved(desk)
    fence_recovery(desk, recovery)
    assert fencing.calls == [("frozen", [0, 1], None)]
    told = find_detail(desk, recovery.id, "fenced without a record")
    assert "deleted" in told["message"]


def test_cluster_that_was_renamed_is_named(
    desk: Workspace, tmp_path: Path, fencing: Fencing
) -> None:
    recovery = store_approved(desk).id
    desk.ledger.recoveries.advance(recovery, RecoveryState.RUNNING, "op")
    cluster = {"bootstrap.servers": "127.0.0.1:1"}
    stream = {"cluster": "other", "topic": "orders", "group": "service"}
    write_config(tmp_path, clusters={"other": cluster}, streams={"orders": stream})
    moved = open_desk(tmp_path, clusters={"other": cluster}, streams={"orders": stream})
    with pytest.raises(ConfigurationError, match="cluster main") as caught:
        fence_recovery(moved, moved.ledger.recoveries.get(recovery))
    assert "under `clusters`" in caught.value.hint
    assert fencing.calls == []


def test_recovery_whose_ledger_was_deleted_can_be_cancelled(
    kafka: EmbeddedKafka, tmp_path: Path, unique: str
) -> None:
    """On a real broker; the ledger is not made again by the way."""
    clusters = {"main": {"bootstrap.servers": kafka.bootstrap}}
    desk = open_desk(tmp_path, clusters=clusters)
    gone = replace(LEDGER, topic=f"gone-{unique}")
    recovery = store_approved(desk, ledger_topic=gone.to_json()).id
    desk.ledger.recoveries.advance(recovery, RecoveryState.RUNNING, "op")
    cancelled = cancel_work(desk, recovery, wait=0)
    assert cancelled.state is RecoveryState.CANCELLED
    assert "deleted" in find_detail(desk, recovery, "fenced without a record")["message"]
    with pytest.raises(TopicMissing):
        describe_topic(clusters["main"], gone.topic)


@pytest.mark.parametrize("state", [S.PLANNED, S.REJECTED, S.RUNNING, S.VERIFIED])
def test_fault_84_an_expansion_of_the_topic_has_put_nothing_back(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch, state: RecoveryState
) -> None:
    """It has no Kafka ledger to ask, whatever became of it."""
    set_ledger(monkeypatch, LEDGER)
    expansion = store_expand_plan(desk)
    if state is S.REJECTED:
        desk.ledger.recoveries.advance(expansion.id, state, "ada")
    elif state is not S.PLANNED:
        approve_plan(desk, expansion, by="ada")
        for each in dict.fromkeys((S.RUNNING, state)):
            desk.ledger.recoveries.advance(expansion.id, each, "ada")
    assert freeze_ledger(desk, desk.config.stream("orders")) == (LEDGER, ())


def test_a_plan_that_never_ran_is_not_asked(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of another version that was rejected: it is in nobody's way."""
    set_ledger(monkeypatch, LEDGER)
    rejected = store_plan(desk)
    desk.ledger.recoveries.advance(rejected.id, S.REJECTED, "ada")
    monkeypatch.setattr(REBUILD, "read_plan", refuse_to_read)
    assert freeze_ledger(desk, desk.config.stream("orders")) == (LEDGER, ())


def test_what_ran_and_cannot_be_read_is_not_taken_for_nothing(
    desk: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a kind that this program does not know, killed before its count was copied."""
    set_ledger(monkeypatch, LEDGER)
    mystery = store_mystery(desk, S.FAILED)
    assert mystery.injected == 0
    with pytest.raises(Refused, match="does not know the kind mystery"):
        freeze_ledger(desk, desk.config.stream("orders"))


def refuse_to_read(recovery: Recovery) -> RebuildPlan:
    raise Refused("of another version", subject=f"recovery {recovery.id}")


class Act:
    """A step that does what the test says."""

    name = "act"

    def __init__(self, part: Callable[[RunContext[Any]], None]) -> None:
        self._part = part

    def validate(self, context: RunContext[Any]) -> None:
        """Nothing to look at."""

    def start(self, context: RunContext[Any]) -> None:
        """The part."""
        self._part(context)

    def complete(self, context: RunContext[Any]) -> None:
        """Notes that it came so far."""
        context.record("act closed")


@pytest.fixture
def fenced(monkeypatch: pytest.MonkeyPatch) -> list[Recovery]:
    """The recoveries that were fenced, as they were then."""
    seen: list[Recovery] = []

    def close(kind: Rebuild, workspace: Workspace, recovery: Recovery, *_: Any, **__: Any) -> None:
        seen.append(recovery)

    monkeypatch.setattr(Rebuild, "close", close)
    return seen


def run_with(
    monkeypatch: pytest.MonkeyPatch,
    desk: Workspace,
    recovery_id: str,
    part: Callable[[RunContext[Any]], None],
) -> Recovery:
    monkeypatch.setattr(Rebuild, "context", RunContext)
    monkeypatch.setattr(Rebuild, "steps", (Act(part),))
    return Run(desk, recovery_id, Console(quiet=True)).carry_out()


def test_cancel_during_the_first_run_fences(
    monkeypatch: pytest.MonkeyPatch, desk: Workspace, fenced: list[Recovery]
) -> None:
    recovery = store_approved(desk).id

    def cancel(context: RunContext[Any]) -> None:
        assert context.recovery.state is S.APPROVED, "it was read before the run began"
        raise CancelRequested("cancelled")

    with pytest.raises(CancelRequested):
        run_with(monkeypatch, desk, recovery, cancel)
    assert [one.state for one in fenced] == [S.RUNNING]
    assert desk.ledger.recoveries.get(recovery).state is S.CANCELLED


def test_cancel_of_what_never_ran_fences_nothing(desk: Workspace, fenced: list[Recovery]) -> None:
    recovery = store_approved(desk).id
    assert cancellation.cancel_work(desk, recovery, wait=0).state is S.CANCELLED
    assert fenced == []


@pytest.mark.parametrize(
    "error", [ProducerFenced("a newer producer"), Paused("outside"), ZeroDivisionError(), None]
)
def test_fault_02_runner_without_its_lease_leaves_the_state_alone(
    monkeypatch: pytest.MonkeyPatch, desk: Workspace, error: Exception | None
) -> None:
    recovery = store_approved(desk).id

    def lose(context: RunContext[Any]) -> None:
        take_over(desk, recovery)
        if error is not None:
            raise error

    with pytest.raises(LeaseHeld if error is None else type(error)):
        run_with(monkeypatch, desk, recovery, lose)
    assert desk.ledger.recoveries.get(recovery).state is S.RUNNING
    actions = read_actions(desk, recovery)
    assert actions[-1] == "lease taken over"
    assert "act closed" not in actions
    holder = desk.ledger.leases.holder(recovery)
    assert holder is not None
    assert not holder.expired


def test_fault_02_runner_without_its_lease_cancels_nothing(
    monkeypatch: pytest.MonkeyPatch, desk: Workspace, fenced: list[Recovery]
) -> None:
    recovery = store_approved(desk).id

    def lose(context: RunContext[Any]) -> None:
        take_over(desk, recovery)
        raise CancelRequested("cancelled")

    with pytest.raises(LeaseHeld):
        run_with(monkeypatch, desk, recovery, lose)
    assert fenced == []
    assert desk.ledger.recoveries.get(recovery).state is S.RUNNING


def test_an_interrupt_that_native_code_hides_pauses(
    monkeypatch: pytest.MonkeyPatch, desk: Workspace
) -> None:
    """As `describe_topics` did: it returned its result, with our interrupt set."""
    recovery = store_approved(desk).id

    def hide(context: RunContext[Any]) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt as error:
            raise SystemError("<method> returned a result with an exception set") from error

    def break_off(context: RunContext[Any]) -> None:
        raise SystemError("<method> returned NULL without setting an exception")

    with pytest.raises(Paused, match="interrupted"):
        run_with(monkeypatch, desk, recovery, hide)
    assert desk.ledger.recoveries.get(recovery).state is S.PAUSED
    with pytest.raises(SystemError, match="NULL"):
        run_with(monkeypatch, desk, recovery, break_off)
    assert desk.ledger.recoveries.get(recovery).state is S.FAILED


def test_failed_and_paused_runs_go_on(monkeypatch: pytest.MonkeyPatch, desk: Workspace) -> None:
    recovery = store_approved(desk).id

    def fail(context: RunContext[Any]) -> None:
        raise ProducerFenced("a newer producer")

    def pause(context: RunContext[Any]) -> None:
        raise Paused("outside")

    for part, error, state in ((fail, ProducerFenced, S.FAILED), (pause, Paused, S.PAUSED)):
        with pytest.raises(error):
            run_with(monkeypatch, desk, recovery, part)
        assert desk.ledger.recoveries.get(recovery).state is state
    cleared: list[Workspace] = []
    monkeypatch.setattr(runner, "clear_staging", cleared.append)
    done = run_with(monkeypatch, desk, recovery, lambda _: None)
    assert done.state is S.VERIFIED
    assert cleared == [desk], "the end of a run is when old staged messages go"
