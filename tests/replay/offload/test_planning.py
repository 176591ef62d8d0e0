"""Why an offload is refused, what its plan says, and that what is told of it is true."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backlogctl.archive_manifest import ArchivedRange
from backlogctl.errors import InvalidTransition, Refused, UsageError
from backlogctl.kafka import groups
from backlogctl.kafka.admin import list_offsets, list_topic_readers
from backlogctl.kafka.groups import EndsBehind
from backlogctl.kafka.log_dirs import BrokerLogDirs, LogDirs
from backlogctl.ledger import open_ledger
from backlogctl.replay.engine.next_commands import CANCEL_ASKED
from backlogctl.replay.engine.options import read_options
from backlogctl.replay.engine.plan import LEAVE_CONSUMERS
from backlogctl.replay.engine.values import Account, RecoveryRecord
from backlogctl.replay.kinds.offload import context
from backlogctl.replay.kinds.offload.context import OffloadContext
from backlogctl.replay.kinds.offload.describe import account_for_offload
from backlogctl.replay.kinds.offload.gaps import record_discarded
from backlogctl.replay.kinds.offload.kind import KIND
from backlogctl.replay.kinds.offload.plan import EXPIRED, GIVEN_UP, OffloadOptions, OffloadPlan
from backlogctl.replay.kinds.offload.planning import look_at_place, plan_offload
from backlogctl.replay.observe import snapshot
from backlogctl.values import Cause, GapState, Recovery
from tests.kit.kafka import set_offsets_raw, wait_until
from tests.kit.ledger import make_gap, plan
from tests.replay.expand.world import PARTITIONS
from tests.replay.offload.conftest import READ, MakeOffload
from tests.replay.offload.world import OffloadWorld, find_fence, find_place


def test_a_plan_says_what_is_unread_where_it_goes_and_what_that_frees(
    make_idle: MakeOffload,
) -> None:
    world = make_idle(400)
    plan = world.plan().plan
    assert plan["unread"] == 400 - 2 * READ
    assert plan["bytes"] > 1000
    assert plan["place"]["location"] == str(world.directory / "archives" / plan_id(plan))
    assert plan["place"]["on_broker"] is True
    assert plan["freeing"]["most"] > plan["bytes"]
    (broker,) = plan["disks"]["brokers"]
    assert broker["total"] > broker["usable"] > 0
    assert world.open().ledger.disks.history("main")
    assert world.read_lows() == {0: 0, 1: 0}


def find_ends(world: OffloadWorld) -> dict[int, int]:
    """Where the logs end."""
    return list_offsets(world.properties, world.topic, range(PARTITIONS), "latest")


def plan_id(plan: object) -> str:
    """The id that a plan's place ends in."""
    assert isinstance(plan, dict)
    return str(plan["place"]["location"].rpartition("/")[2])


def test_an_archive_on_a_brokers_disk_is_allowed_by_name(make_idle: MakeOffload) -> None:
    world = make_idle(200)
    workspace = world.open()
    said = OffloadOptions(allow=("other-groups:billing",))
    with pytest.raises(Refused, match="on the disk of broker 1") as caught:
        plan_offload(workspace, workspace.config.stream("orders"), said)
    again = "plan offload orders --allow other-groups:billing --allow disk`"
    assert again in caught.value.hint, "what was said stays said"


def test_place_without_room_or_of_unknown_need(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    elsewhere = LogDirs((BrokerLogDirs(1, 5, 10, {}, ("/no/such/folder",)),))
    full = look_at_place(str(tmp_path / "a" / "b"), free * 2, elsewhere)
    assert (full.enough, full.on_broker) == (False, None)
    assert "not enough room" in full.problem
    unknown = look_at_place(str(tmp_path), None, LogDirs(None, "nobody tells"))
    assert unknown.enough is None
    assert "nobody tells" in unknown.problem
    assert look_at_place(str(tmp_path), 10, elsewhere).problem == ""
    store = look_at_place("s3a://bucket/it", 10, elsewhere)
    assert (store.free, store.problem) == (None, "")


def test_compacted_topics_are_not_cut(make_idle: MakeOffload) -> None:
    world = make_idle(40, {"cleanup.policy": "compact"})
    with pytest.raises(Refused, match=r"cleanup\.policy is compact"):
        world.plan()


def test_fault_21_without_a_commit_it_is_unknown_what_is_unread(make_idle: MakeOffload) -> None:
    world = make_idle(40, read=None)
    with pytest.raises(Refused, match="does not exist"):
        world.plan()
    set_offsets_raw(world.properties, world.group, world.topic, {1: 3})
    with pytest.raises(Refused, match="no committed offset on partitions 0:") as caught:
        world.plan()
    assert "--reset-offsets" in caught.value.hint


def test_fault_22_committed_beyond_the_end(make_idle: MakeOffload) -> None:
    world = make_idle(40)
    set_offsets_raw(world.properties, world.group, world.topic, {0: 4000})
    with pytest.raises(Refused, match="beyond the end"):
        world.plan()


def test_fault_60_denied_topics(make_idle: MakeOffload) -> None:
    world = make_idle(40)
    world.change_config(lambda document: document.update(guards={"deny_topics": ["orders-*"]}))
    with pytest.raises(Refused, match="denied by the pattern"):
        world.plan()


def test_nothing_is_unread(make_idle: MakeOffload) -> None:
    world = make_idle(40)
    set_offsets_raw(world.properties, world.group, world.topic, find_ends(world))
    with pytest.raises(Refused, match="nothing is unread"):
        world.plan()


def test_consumers_must_be_known(make_idle: MakeOffload) -> None:
    world = make_idle(40)
    world.change_config(lambda document: document["streams"]["orders"].pop("consumers"))
    with pytest.raises(UsageError, match="consumers are started"):
        world.plan()


def test_discarding_needs_a_source_or_a_word(make_idle: MakeOffload) -> None:
    world = make_idle(40)
    with pytest.raises(Refused, match="no source") as caught:
        world.plan(discard=True)
    assert "--allow lose" in caught.value.hint
    lost = world.plan(discard=True, allow=("lose",))
    assert lost.plan["place"] is None
    assert any("never comes back" in text for text in lost.plan["given_back"])


def test_another_recovery_of_the_group_is_in_the_way(make_idle: MakeOffload) -> None:
    world = make_idle(40)
    first = world.plan_approved()
    with pytest.raises(InvalidTransition, match=first.id):
        world.plan()


def test_other_groups_are_named_with_what_they_lose(make_idle: MakeOffload) -> None:
    world = make_idle(400)
    audit, ahead = f"{world.group}-audit", f"{world.group}-ahead"
    ends = find_ends(world)
    set_offsets_raw(world.properties, audit, world.topic, {0: 5, 1: ends[1]})
    set_offsets_raw(world.properties, ahead, world.topic, ends)
    with pytest.raises(Refused, match=rf"{audit} \(at most {ends[0] - 5} messages\)") as caught:
        world.plan()
    assert ahead not in caught.value.message
    assert f"--allow other-groups:{audit}" in caught.value.hint
    with pytest.raises(Refused, match=audit):
        world.plan(allow=("other-groups:somebody-else",))
    plan = world.plan(allow=(f"other-groups:{audit}",)).plan
    (cut,) = plan["cut_groups"]
    assert (cut["group"], cut["messages"]) == (audit, ends[0] - 5)


def test_a_group_that_committed_on_some_partitions_loses_on_the_others(
    make_idle: MakeOffload,
) -> None:
    world = make_idle(400)
    half, ends = f"{world.group}-half", find_ends(world)
    set_offsets_raw(world.properties, half, world.topic, {0: ends[0]})
    with pytest.raises(Refused, match=rf"{half} \(at most {ends[1]} messages\)"):
        world.plan()
    (cut,) = world.plan(allow=(f"other-groups:{half}",)).plan["cut_groups"]
    assert (cut["group"], cut["messages"]) == (half, ends[1])


def test_groups_that_may_not_be_seen_are_unknown(
    make_idle: MakeOffload, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_idle(40)
    real = list_topic_readers

    def hide(*args: object) -> object:
        return replace(real(*args), hidden=("payments",))  # type: ignore[arg-type]

    monkeypatch.setattr(snapshot, "list_topic_readers", hide)
    with pytest.raises(Refused, match="is unknown: the tool may not read") as caught:
        world.plan()
    assert "--allow unknown-groups" in caught.value.hint
    assert world.plan(allow=("unknown-groups",)).plan["others_unknown"]


def test_words_that_are_not_known(make_idle: MakeOffload) -> None:
    world = make_idle(40)
    config = world.open().config
    stream = config.stream("orders")
    for word in ("disc", "other-groups:", "other-groups"):
        with pytest.raises(UsageError, match="is not known"):
            read_options(OffloadOptions, {"allow": [word]}, config, stream)
    said = {"allow": ["other-groups:a b", "disk"]}
    assert read_options(OffloadOptions, said, config, stream).allow == ("disk", "other-groups:a b")


def tell(
    *events: Any, place: object = "somewhere", states: Sequence[GapState] = (), **detail: Any
) -> Account:
    """The account of an offload whose verification found that."""
    plan = SimpleNamespace(
        unread=100, place=place, stream="orders", topic="orders", group="shop", partitions=()
    )
    step = SimpleNamespace(step="verify", is_complete=True, detail=detail)
    recovery = SimpleNamespace(id="r-1", detail={"counts": {}}, state="verified")
    record = RecoveryRecord(
        cast(Any, recovery),
        cast(Any, None),
        events=events,
        steps=(cast(Any, step),),
        gaps=tuple(cast(Any, SimpleNamespace(state=state)) for state in states),
    )
    return account_for_offload(cast(OffloadPlan, plan), record)


def note(action: str, **detail: Any) -> Any:
    return SimpleNamespace(action=action, detail=detail)


@pytest.mark.parametrize("place", ["somewhere", None])
def test_consumers_that_do_not_move_are_not_said_to_go_on(place: str | None) -> None:
    assert "are back and go on" in tell(place=place, moves=True).verified
    told = tell(place=place, moves=False).verified
    assert "go on" not in told
    assert "does not move" in told
    counts = {"archived": 5, "offsets": 5, "freed_bytes": None}
    plan = cast(OffloadPlan, SimpleNamespace(place=place))
    assert "does not move" in KIND.say_run(plan, {**counts, "moves": False})
    assert KIND.say_run(plan, counts).endswith("the consumers are back")


def test_messages_wait_only_until_they_are_put_back() -> None:
    back, waived = GapState.VERIFIED, GapState.WAIVED
    assert "wait in the archive" in tell(states=[back, GapState.STAGED]).after_losses
    assert "put back since" in tell(states=[back, back]).after_losses
    assert "None of them waits" in tell(states=[back, waived]).after_losses


def test_an_archive_without_messages_was_counted() -> None:
    assert tell(archived=0, offsets=7).unexplained.told.startswith("7 of 7 offsets hold no message")
    assert "nothing to archive" in tell(archived=0, offsets=0).unexplained.told
    assert "not counted" in tell(archived=0, offsets=7, place=None).unexplained.told


def test_what_retention_removed_is_named() -> None:
    lost = note(EXPIRED, partition=0, start=0, end=30)
    found = tell(lost, archived=60, offsets=70, expired=30).unexplained
    assert any("at most 30 messages" in reason for reason in found.reasons)


@pytest.mark.parametrize("action", [GIVEN_UP, "said"])
def test_consumers_that_were_left_were_not_started(action: str) -> None:
    asked = note(CANCEL_ASKED, ways=[LEAVE_CONSUMERS])
    assert "left to you" in tell(asked, note(action)).cancelled
    assert "were started" in tell(note(CANCEL_ASKED, ways=[]), note(action)).cancelled


def test_what_retention_took_meanwhile_is_its_loss_whoever_saw_it_first() -> None:
    def make(partition: int, start: int, cause: Cause = Cause.EXPIRED) -> Any:
        return SimpleNamespace(
            partition=partition, start=start, end=start + 9, cause=cause, archive=None, reason="x"
        )

    ours = make(0, 5)
    gaps = [ours, make(1, 5), make(0, 40), make(0, 5, Cause.SKIPPED)]
    ledger = SimpleNamespace(
        gaps=SimpleNamespace(list=lambda stream: gaps),
        events=SimpleNamespace(list=lambda _: [note(EXPIRED, partition=0, start=0, end=30)]),
    )
    recovery = cast(Any, SimpleNamespace(id="r-1", stream="orders"))
    assert KIND.find_gaps(cast(OffloadPlan, None), ledger, recovery, None) == (ours,)


def test_an_empty_range_that_an_older_gap_cuts_leaves_no_open_gap(tmp_path: Path) -> None:
    with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        recovery = plan(ledger, kind="offload")
        older = ledger.gaps.record(make_gap(40, 60))
        told: list[str] = []
        context = SimpleNamespace(
            archive=SimpleNamespace(ranges=(ArchivedRange(0, 10, 100, 0, None, None),)),
            plan=SimpleNamespace(topic_id="topic-id", place="somewhere"),
            recovery=recovery,
            say=told.append,
            stream=SimpleNamespace(name="orders"),
            workspace=SimpleNamespace(ledger=ledger),
        )
        context.record_gap = partial(OffloadContext.record_gap, cast(OffloadContext, context))
        for _ in range(2):
            record_discarded(cast(OffloadContext, context))
        found = [(gap.start, gap.end, str(gap.state)) for gap in ledger.gaps.list()]
        assert found == [(10, 40, "waived"), (40, 60, "open"), (60, 100, "waived")]
        assert ledger.gaps.get(older.id) == older


def test_a_source_that_is_gone_since_the_plan_stops_a_discard(idle: OffloadWorld) -> None:
    """Nobody said that it may be lost for good."""

    def add_source(document: dict[str, Any]) -> None:
        document["sources"] = {"shop": {"url": "postgresql://localhost/shop"}}
        document["streams"]["orders"]["source"] = {
            "database": "shop",
            "table": "orders",
            "primary_key": ["order_id"],
            "time_column": "updated_at",
            "mutable": False,
            "message": {"key": "order_id", "value": {"json": ["order_id"]}},
            "identity": {"row": "order_id", "message": "key"},
            "stale": "restate",
        }

    idle.change_config(add_source)
    recovery = idle.plan_approved(discard=True)
    idle.write_config()
    with pytest.raises(Refused, match="never comes back"):
        idle.run(recovery)
    assert "stop_consumers" not in {s.step for s in idle.open().ledger.steps.list(recovery.id)}
    assert idle.read_lows() == {0: 0, 1: 0}


def plant(recovery: Recovery) -> None:
    """What another ledger's offload of the same id has finished there."""
    place = find_place(recovery)
    sign = {"version": 1, "recovery_id": recovery.id, "plan_hash": "0" * 64}
    texts = {
        "_parts/job.json": json.dumps(sign),
        "manifest.json": json.dumps(sign),
        "partition=0/000001.parquet": "messages",
    }
    for name, text in texts.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)


def list_files(place: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_fault_12_a_place_with_another_archive_stops_nobody(idle: OffloadWorld) -> None:
    recovery = idle.plan_approved()
    plant(recovery)
    before = list_files(find_place(recovery))
    with pytest.raises(Refused, match="archive of another recovery"):
        idle.run(recovery)
    steps = {step.step for step in idle.open().ledger.steps.list(recovery.id)}
    assert "stop_consumers" not in steps
    assert idle.cancel(recovery, "leave-consumers").state == "cancelled"
    assert list_files(find_place(recovery)) == before


def test_fault_12_a_cancel_deletes_nobody_elses_archive(idle: OffloadWorld) -> None:
    """It came after the look at the place."""
    recovery = idle.plan_approved()

    def come_first() -> None:
        plant(recovery)

    idle.at("p5.3.fenced", come_first)
    with pytest.raises(Refused, match="archive of another recovery"):
        idle.run(recovery)
    before = list_files(find_place(recovery))
    assert len(before) == 3
    assert idle.cancel(recovery, "leave-consumers").state == "cancelled"
    assert list_files(find_place(recovery)) == before
    assert "nothing of it was changed" in idle.told.getvalue()


@pytest.mark.parametrize(
    ("point", "is_passing"),
    [("p5.4.recorded", False), ("p5.5.staged", False), ("p5.5.staged", True)],
)
def test_fault_74_a_log_that_ends_below_the_fence(
    idle: OffloadWorld, monkeypatch: pytest.MonkeyPatch, point: str, *, is_passing: bool
) -> None:
    """`is_passing`: whether the log is cut back is not known in time; that holds no cancel up."""
    recovery = idle.plan_approved()

    def cut(*args: Any, **words: Any) -> dict[int, int]:
        found = list_offsets(*args, **words)
        return {n: at - 5 if n == 0 and "latest" in args else at for n, at in found.items()}

    def cut_back() -> None:
        monkeypatch.setattr(groups, "TRUNCATED_SECONDS", 3600.0 if is_passing else 0.5)
        if is_passing:
            monkeypatch.setattr(context, "ASK_SECONDS", 8.0)
        monkeypatch.setattr(groups, "list_offsets", cut)

    idle.at(point, cut_back)
    told = r"below the (known written|committed) offset"
    with pytest.raises(EndsBehind if is_passing else Refused, match=told):
        idle.run(recovery)
    assert idle.read_lows() == {0: 0, 1: 0}
    moved = point == "p5.5.staged"
    fence = find_fence(idle, recovery)
    assert idle.read_commits() == (fence if moved else {0: READ, 1: READ})
    assert idle.cancel(recovery).state == "cancelled"
    assert idle.read_lows() == {0: 0, 1: 0}
    wait_until(lambda: len(idle.find_members()) > 0, what="consumers are back")
