"""Each standing of an expansion: the commands that are printed lead to an end, and lose nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pytest

from backlogctl.errors import VerificationFailed
from backlogctl.fanout.launchers import Role
from backlogctl.values import Cause, Certainty, GapState, Recovery
from tests.kit.kafka import delete_topic, move_log_start, wait_until
from tests.kit.processes import ROOT
from tests.replay.expand.oracle import (
    SETTINGS,
    await_handled,
    find_layout_problems,
    find_unhandled,
)
from tests.replay.expand.test_faults import add_partition
from tests.replay.expand.test_requests import find_left, kill_in_the_drain
from tests.replay.expand.test_rewinding import fail_the_canary
from tests.replay.expand.world import CONSUMER, WITHIN, World

REWIND, CANCEL, RUN = "cancel R --rewind", "cancel R", "run R"
UNSET: dict[str, str | None] = dict.fromkeys(SETTINGS)


def let_go(world: World) -> None:
    world.set_speed(Role.RECOVERY, None)


def let_all_go(world: World) -> None:
    """The group must read past the canary of what is put back within a minute."""
    let_go(world)
    world.set_speed(Role.ORIGINAL, None)


@contextmanager
def breaking_launcher(world: World) -> Iterator[None]:
    """Its consumers cannot be started meanwhile."""
    path = world.directory / "backlog.yaml"
    before = path.read_text()
    document = json.loads(before)
    document["streams"]["orders"]["consumers"]["command"] = ["/bin/false"]
    path.write_text(json.dumps(document))
    yield
    path.write_text(before)


def fail(world: World, recovery: Recovery, *words: str) -> None:
    """A try that fails prints what `show` prints then."""
    said = world.call(*words, recovery.id, "--json", code=None)
    assert said.code, said
    shown = world.call("show", recovery.id, "--json").document
    assert said.document["next_commands"] == shown["next_commands"], said
    standing = said.document.get("standing")
    assert standing is None or standing["next_commands"] == shown["next_commands"]


# What is done to the world, up to a recovery that waits for a person.


def kill(world: World) -> Recovery:
    return kill_in_the_drain(world)


def fail_canary(world: World) -> Recovery:
    return fail_the_canary(world)


def bring_consumer_back(world: World) -> Recovery:
    recovery = kill_in_the_drain(world)
    world.start_intruder()
    wait_until(lambda: "order-service-intruder" in world.find_members())
    world.set_consumers(stop_within="2s")
    fail(world, recovery, "run")
    return recovery


def end_intruder(world: World) -> None:
    let_go(world)
    (intruder,) = (one for one in world.started if str(CONSUMER) in str(one.args))
    intruder.terminate()
    intruder.wait(WITHIN)
    wait_until(lambda: not world.find_members(), what="the group is empty")


def delete_copy(world: World) -> Recovery:
    """Nobody runs it after that: only `show` asks."""
    recovery = kill_in_the_drain(world)
    said = world.call("status", "orders", code=None).out
    assert "next: backlogctl run " in said
    assert "backlogctl plan" not in said, "an open recovery would refuse it"
    delete_topic(world.properties, recovery.plan["temporary"]["topic"])
    return recovery


def delete_copy_and_run(world: World) -> Recovery:
    recovery = delete_copy(world)
    fail(world, recovery, "run")
    return recovery


def delete_both(world: World) -> Recovery:
    """Of the source only a part is gone: what was relayed."""
    recovery = delete_copy(world)
    move_log_start(
        world.properties, world.topic, {n: at + 1 for n, at in find_begun(world).items()}
    )
    fail(world, recovery, "run")
    return recovery


def find_begun(world: World) -> dict[int, int]:
    recovery = world.open().ledger.recoveries.list("orders")[0]
    step = world.open().ledger.steps.get(recovery.id, "stop_consumers")
    assert step is not None
    return {int(number): at for number, at in step.detail["committed"].items()}


def refuse_rewind(world: World) -> Recovery:
    """The copy has what the source has no more."""
    recovery = fail_the_canary(world)
    move_log_start(
        world.properties, world.topic, {n: at + 1 for n, at in find_begun(world).items()}
    )
    fail(world, recovery, "cancel", "--rewind")
    return recovery


def kill_rewind(world: World) -> Recovery:
    recovery = fail_the_canary(world)
    killed = world.start("cancel", recovery.id, "--rewind", crash_at="p4.rewind.fenced")
    killed.communicate(timeout=WITHIN)
    return recovery


def reset_to_latest(world: World) -> Recovery:
    """What lies between is in the log, and the stream has no table."""
    recovery = kill_in_the_drain(world)
    world.reset_group("latest")
    world.publish(100)
    let_all_go(world)
    for _ in range(2):  # the second one changes nothing
        with pytest.raises(VerificationFailed, match="came back, or skipped") as caught:
            world.run(recovery)
    assert caught.value.next_commands == (f"backlogctl cancel {recovery.id}",)
    assert "backlogctl plan redrive orders --from log --offsets" in caught.value.hint
    assert "or somebody skipped them" in world.told.getvalue()
    return recovery


def add_partitions(world: World) -> Recovery:
    recovery = kill_in_the_drain(world)
    add_partition(world)
    fail(world, recovery, "run")
    return recovery


def change_topic_before_the_run(world: World) -> Recovery:
    recovery = world.plan_approved()
    add_partition(world)
    fail(world, recovery, "run")
    return recovery


def read_all_before_the_run(world: World) -> Recovery:
    recovery = world.plan_approved()
    let_all_go(world)
    wait_until(lambda: world.find_rest() == 0, 90.0, "the usual consumers have read it")
    fail(world, recovery, "run")
    return recovery


def cancel_without_launcher(world: World) -> Recovery:
    recovery = fail_the_canary(world, rate=0.001)
    with breaking_launcher(world):
        fail(world, recovery, "cancel")
    return recovery


def leave_unread(world: World) -> Recovery:
    """A person was to start consumers, and messages are only in the temporary topic."""
    recovery = kill_in_the_drain(world)  # its consumers are slow: some is handled, and much is not
    killed = world.start("run", recovery.id, crash_at="p4.7.consumers.started")
    killed.communicate(timeout=WITHIN)
    world.launcher.stop(world.fleet(Role.RECOVERY, recovery), lambda: None)
    fail(world, recovery, "cancel", "--leave-consumers")
    return recovery


def start_originals(world: World) -> None:
    world.start_originals()


def await_layout(world: World, recovery: Recovery, state: str) -> None:
    """Spark ends a moment after the command that used it."""
    with suppress(AssertionError):
        wait_until(lambda: not find_layout_problems(world, recovery, UNSET, state), 60)
    assert find_layout_problems(world, recovery, UNSET, state) == []


@dataclass(frozen=True)
class Case:
    """A standing, what a person mends before typing, and the commands that are printed."""

    arrange: Callable[[World], Recovery]
    typed: tuple[str, ...]
    mend: Callable[[World], None] = let_go
    after: Callable[[World], None] = lambda _: None
    state: str = "verified"
    lost: bool = False
    extra: dict[str, bool] = field(default_factory=dict)


# What the log still has of it.
FROM_LOG = ("plan redrive orders --from log --offsets", "approve P --by NAME", "run P")
CASES = {
    "the runner was killed": Case(kill, (RUN,)),
    "the canary failed": Case(fail_canary, (RUN,)),
    "a consumer came back": Case(bring_consumer_back, (RUN,), end_intruder),
    "the copy was deleted": Case(delete_copy, (REWIND,), state="cancelled"),
    "the copy was deleted, then run": Case(delete_copy_and_run, (REWIND,), state="cancelled"),
    "the copy and its source are gone": Case(
        delete_both, (CANCEL, *FROM_LOG), let_all_go, state="cancelled", lost=True
    ),
    "a rewind was refused": Case(refuse_rewind, (CANCEL,), state="cancelled"),
    "a rewind was killed": Case(kill_rewind, (REWIND,), state="cancelled"),
    "partitions were added": Case(add_partitions, (CANCEL,), state="cancelled"),
    "partitions were added before": Case(change_topic_before_the_run, (CANCEL,), state="cancelled"),
    "all was read before": Case(read_all_before_the_run, (CANCEL,), state="cancelled"),
    "the launcher does not work": Case(
        cancel_without_launcher,
        ("cancel R --leave-consumers",),
        after=start_originals,
        state="cancelled",
    ),
    "what is unread was left": Case(
        leave_unread,
        ("cancel R --leave-consumers --rewind",),
        after=start_originals,
        state="cancelled",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_fault_122_the_commands_that_are_printed_lead_to_an_end(world: World, name: str) -> None:
    case = CASES[name]
    recovery = case.arrange(world)
    case.mend(world)
    typed = world.follow(recovery)
    assert len(typed) == len(case.typed), typed
    assert all(map(str.startswith, typed, case.typed)), typed
    case.after(world)
    await_handled(world, 10.0 if case.lost else 90.0)
    if case.lost:
        gaps = world.open().ledger.gaps.list("orders")
        left = [gap for gap in gaps if gap.state is GapState.OPEN]
        named = {(g.partition, at) for g in left for at in range(g.start or 0, g.end or 0)}
        assert named == set(find_begun(world).items()), "what the log has is put back, and closed"
        assert find_left(world) == set()
    else:
        assert find_unhandled(world) == []
    await_layout(world, recovery, case.state)


def test_fault_123_what_may_have_been_skipped_is_put_back_from_the_log(world: World) -> None:
    """The stream has no table: a rebuild would be refused. Whether a consumer has read it a person
    must look up, so it is told how, and no plan is the next command. The gap is closed."""
    path = world.directory / "backlog.yaml"
    document = json.loads(path.read_text())
    document["spark"] = {"master": "local[2]"}
    path.write_text(json.dumps(document))
    recovery = reset_to_latest(world)
    gaps = world.open().ledger.gaps.list("orders")
    assert {(gap.cause, gap.certainty) for gap in gaps} == {(Cause.SKIPPED, Certainty.POSSIBLE)}
    wait_until(lambda: not world.find_rest(), what="the rest is read")
    named = {(g.partition, at) for g in gaps for at in range(g.start or 0, g.end or 0)}
    assert find_left(world) == named
    places = " ".join(f"--offsets {g.partition}:{g.start}-{(g.end or 0) - 1}" for g in gaps)
    assert world.follow(recovery) == [CANCEL]
    shown = " ".join(world.call("gaps", "orders").out.split())
    assert "next: backlogctl plan" not in shown
    for gap in gaps:
        assert f"{gap.id} was read, or skipped" in shown
        assert f"`backlogctl waive {gap.id} --reason ...`" in shown
    redrive = f"plan redrive orders --from log {places} --json"
    planned = json.loads(world.call(*redrive.split()).out)["id"]
    world.call("approve", planned, "--by", "tester")
    world.call("run", planned)
    await_handled(world)
    assert find_unhandled(world) == []
    assert {gap.state for gap in world.open().ledger.gaps.list("orders")} == {GapState.VERIFIED}
    await_layout(world, recovery, "cancelled")
    assert "plan " not in world.call("status", "orders", code=None).out


def test_commands_about_a_recovery_are_made_in_one_place() -> None:
    """A hint says what to mend; a command in it could be another one than is printed below.

    A plan that cannot be read has no next command: that is said by its refusal.
    """
    own = {ROOT / "replay/engine" / name for name in ("next_commands.py", "kind.py")}
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for room in ("replay", "fanout", "spark_backfill")
        for path in sorted((ROOT / room).rglob("*.py"))
        if path not in own
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if any(f"`backlogctl {verb} {{" in line for verb in ("run", "cancel"))
    ]
    assert wrong == []
