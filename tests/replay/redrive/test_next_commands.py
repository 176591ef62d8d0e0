"""Each standing of a redrive: the commands that are printed lead to an end, and lose nothing."""

from __future__ import annotations

import io
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from rich.console import Console

from backlogctl.clock import utc_now
from backlogctl.kafka.admin import create_topic, describe_topic, list_offsets, read_metadata
from backlogctl.kafka.clients import make_producer
from backlogctl.replay.engine.runner import Run
from backlogctl.spark_backfill.injection import verification, waves
from backlogctl.values import Cause, GapState
from backlogctl_delivery.stamps import MESSAGE_ID, find_header
from tests.kit.following import follow
from tests.kit.kafka import delete_topic, leave_at, move_log_start, read_all, set_config
from tests.kit.ledger import make_gap
from tests.kit.recoveries import PAST, change_ledger
from tests.kit.shop import PARTITIONS, Said, Shop, offload
from tests.kit.transactions import leave_open
from tests.replay.redrive.world import KEEP, keys_of, make_order, publish, read_sent
from tests.spark_backfill.world import await_decided

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("spark")]
TOTAL = 30
ALL = {str(number).encode(): 1 for number in range(TOTAL)}
# After the canary is committed; before all is read back.
CANARY, READ_BACK = "canary", "read back"


class Killed(BaseException):
    """Nothing is written down after it, as after SIGKILL."""


@dataclass
class Story:
    """A group has lost 30 orders, and the log or an archive has them."""

    shop: Shop
    patch: pytest.MonkeyPatch

    def call(self, *words: str, code: int | None = 0) -> Said:
        """Whatever is printed is not refused."""
        said = self.shop.call(*words, code=None)
        assert said.code == 0, (words, code, said)
        return said

    def find_plan(self) -> list[str]:
        """The command that is printed of the gaps."""
        told = " ".join(self.shop.call("gaps", "orders").out.split())
        command = re.search(r"next: backlogctl (plan redrive .*)", told)
        assert command is not None, told
        return shlex.split(command[1])

    def approve(self, *more: str) -> str:
        planned = self.shop.call(*self.find_plan(), *more, "--json").document
        self.shop.call("approve", planned["id"], "--by", "Ada")
        return str(planned["id"])

    def run(self, recovery: str) -> None:
        Run(self.shop.open(), recovery, Console(file=io.StringIO())).carry_out()

    def fail(self, recovery: str) -> str:
        """The try prints what `show` prints then, and its hint names no other command."""
        said = self.shop.call("run", recovery, "--json", code=None)
        assert said.code, said
        (command,) = said.document["next_commands"]
        shown = self.shop.call("show", recovery, "--json").document
        assert shown["next_commands"] == [command], said
        verb, hint = command.split()[1], said.error["hint"]
        ends = ("cancel it", "cancel this", "plan again")
        others = ("run it again", "resume") if verb == "cancel" else ends
        assert not [word for word in others if word in hint and word != verb], (command, hint)
        return str(said.error["code"])

    def at(self, point: str, action: Callable[[], object]) -> None:
        """Does something once, at a point of the run."""
        left = [action]
        module, name = (
            (waves, "read_canary_back") if point == CANARY else (verification, "verify_injection")
        )
        before: Callable[..., Any] = getattr(module, name)
        short = {} if point == CANARY else {"hidden_wait": 2.0}

        def act(*words: Any, **options: Any) -> Any:
            if left:
                left.pop()()
            return before(*words, **options, **short)

        self.patch.setattr(module, name, act)

    def kill_at(self, point: str, *before: Callable[[], object]) -> str:
        """An approved redrive whose runner is killed there."""
        recovery = self.approve()

        def kill() -> NoReturn:
            for each in before:
                each()
            raise Killed

        self.at(point, kill)
        with pytest.raises(Killed):
            self.run(recovery)
        return recovery

    def ask(self, what: Any) -> None:
        """A person asks the runner that is at work."""
        ledger = self.shop.open().ledger
        (recovery,) = ledger.recoveries.list("orders")
        ledger.recoveries.request(recovery.id, what, "ada")

    def judge(self, gaps: set[GapState]) -> None:
        """No order was sent twice, and with closed gaps each was sent."""
        there = self.shop.topic in read_metadata(self.shop.properties).topics
        sent = keys_of(read_sent(self.shop) if there else ())
        states = {gap.state for gap in self.shop.open().ledger.gaps.list() if gap.count}
        assert states == gaps
        assert set(sent.values()) <= {1}, sent
        assert gaps != {GapState.VERIFIED} or dict(sent) == ALL


@pytest.fixture
def empty(empty_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Story:
    shop = empty_shop
    shop.write_config(source=None)
    set_config(shop.properties, shop.topic, KEEP)
    publish(shop, shop.topic, [make_order(number) for number in range(TOTAL)])
    return Story(shop, monkeypatch)


@pytest.fixture
def story(empty: Story) -> Story:
    """The group was set past them, and the log still has them."""
    shop, ends = empty.shop, empty.shop.read_ends()
    leave_at(shop.properties, shop.group, shop.topic, ends)
    shop.call("status", "orders")
    ledger = shop.open().ledger
    sample = ledger.samples.latest("orders")
    assert sample is not None
    for partition, end in ends.items():
        gap = make_gap(0, end, partition=partition, cause=Cause.SKIPPED, topic_id=sample.topic_id)
        ledger.gaps.record(replace(gap, topic=shop.topic, group=shop.group))
    return empty


@pytest.fixture
def archived(empty: Story, spark: SparkSession) -> Story:
    """An offload has moved them."""
    offload(empty.shop, spark)
    return empty


# What is done to the world, up to a recovery that waits for a person.


def keep(_: Story) -> None:
    """Nothing needs mending."""


def change_configuration(story: Story) -> str:
    """The approval expires before anybody looks."""
    recovery = story.approve()
    story.shop.write_config(partitioner="crc32")
    assert story.fail(recovery) == "plan_stale"
    statement = f"UPDATE backlog_recoveries SET approval_expires_at = '{PAST}'"
    change_ledger(story.shop.open(), statement)
    return recovery


def make_topic_anew(story: Story) -> str:
    shop, recovery = story.shop, story.approve()
    delete_topic(shop.properties, shop.topic)
    create_topic(shop.properties, shop.topic, partitions=PARTITIONS, config=KEEP)
    assert story.fail(recovery) == "plan_stale"
    return recovery


def delete_topic_in_mid_run(story: Story) -> str:
    recovery = story.kill_at(CANARY)
    delete_topic(story.shop.properties, story.shop.topic)
    assert story.fail(recovery) == "plan_stale"
    return recovery


def delete_other_target(story: Story) -> str:
    shop = story.shop
    create_topic(shop.properties, f"{shop.topic}.other", partitions=PARTITIONS, config=KEEP)
    recovery = story.approve("--to", f"{shop.topic}.other")
    delete_topic(shop.properties, f"{shop.topic}.other")
    assert story.fail(recovery) == "plan_stale"
    return recovery


def expire(story: Story) -> None:
    move_log_start(story.shop.properties, story.shop.topic, story.shop.read_ends())


def expire_source(story: Story) -> str:
    """What was staged needs it no more."""
    recovery = story.approve()
    expire(story)
    return recovery


def delete_archive(story: Story) -> str:
    recovery = story.approve()
    shutil.rmtree(story.shop.directory / "staging" / "archives")
    return recovery


def expire_at(point: str, story: Story) -> str:
    recovery = story.approve()
    story.at(point, partial(expire, story))
    assert story.fail(recovery) == "verification_failed"
    return recovery


def send_again(story: Story) -> str:
    """Another application copies a message with all its headers."""
    shop, recovery = story.shop, story.approve()

    def copy() -> None:
        producer = make_producer(shop.properties)
        for message in read_all(shop.properties, shop.topic, range(PARTITIONS)):
            headers: Any = message.headers() or []
            if find_header(headers, MESSAGE_ID):
                place: Any = message.partition()
                producer.produce(shop.topic, message.value(), message.key(), place, headers=headers)
                break
        assert producer.flush(60) == 0

    story.at(READ_BACK, copy)
    assert story.fail(recovery) == "verification_failed"
    return recovery


def hide(story: Story) -> str:
    """A transaction was opened below what is injected; it ends by itself."""
    shop, recovery = story.shop, story.approve()
    name = f"open-{shop.group}"
    leave = partial(leave_open, shop.properties, shop.topic, name, timeout_ms=12_000, partition=1)
    story.at(CANARY, leave)
    story.at(READ_BACK, lambda: None)
    assert story.fail(recovery) == "paused"
    return recovery


def await_end(story: Story) -> None:
    await_decided(story.shop.bootstrap, story.shop.topic, PARTITIONS)


def close_window(story: Story) -> str:
    recovery, now = story.approve(), utc_now()
    opens, closes = now + timedelta(hours=3), now + timedelta(hours=4)
    window = {"from": f"{opens:%H:%M}", "to": f"{closes:%H:%M}", "timezone": "UTC"}
    story.shop.write_config(off_peak=window)
    assert story.fail(recovery) == "paused"
    return recovery


def open_window(story: Story) -> None:
    story.shop.write_config(off_peak=None)


def pause_and_kill(story: Story) -> str:
    recovery = story.kill_at(CANARY, partial(story.ask, "pause"))
    assert story.fail(recovery) == "paused"
    return recovery


def cancel_sent(story: Story) -> str:
    """A person changes his mind when all is sent, and nothing is read back."""
    recovery = story.kill_at(READ_BACK)
    story.shop.call("cancel", recovery)
    return recovery


def delete_kafka_ledger(story: Story) -> str:
    recovery = story.kill_at(CANARY)
    delete_topic(story.shop.properties, story.shop.kafka_ledger)
    assert story.fail(recovery) == "kafka_ledger_lost"
    return recovery


def delete_ledger_records(story: Story) -> str:
    """Somebody has changed its clean-up, and changed it back."""
    shop, recovery = story.shop, story.kill_at(CANARY)
    numbers = range(describe_topic(shop.properties, shop.kafka_ledger).partitions)
    set_config(shop.properties, shop.kafka_ledger, {"cleanup.policy": "delete"})
    assert story.fail(recovery) == "refused"
    ends = list_offsets(shop.properties, shop.kafka_ledger, numbers, "latest")
    move_log_start(shop.properties, shop.kafka_ledger, ends)
    set_config(shop.properties, shop.kafka_ledger, {"cleanup.policy": "compact"})
    assert story.fail(recovery) == "kafka_ledger_lost"
    return recovery


def damage_staging(story: Story) -> str:
    recovery = story.approve()
    files = sorted((story.shop.directory / "staging" / recovery / "messages").rglob("*.parquet"))
    shutil.copy(files[0], files[-1])
    assert story.fail(recovery) == "staging_changed"
    return recovery


def lose_staging(story: Story) -> str:
    recovery = story.approve()
    messages = story.shop.directory / "staging" / recovery / "messages"
    messages.rename(story.shop.directory / "kept")
    assert story.fail(recovery) == "staging"
    return recovery


def restore_staging(story: Story) -> None:
    (messages,) = (story.shop.directory / "staging").glob("r-*")
    (story.shop.directory / "kept").rename(messages / "messages")


def add_reader(story: Story) -> str:
    shop, recovery = story.shop, story.approve()
    leave_at(shop.properties, f"audit-{shop.group}", shop.topic, {0: 0})
    assert story.fail(recovery) == "plan_stale"
    return recovery


def deliver(story: Story) -> None:
    story.shop.write_config(deliver="topic")


@dataclass(frozen=True)
class Case:
    """A standing, what a person mends before typing, the commands that are printed, and how the
    gaps are in the end."""

    arrange: Callable[[Story], str]
    typed: tuple[str, ...]
    mend: Callable[[Story], None] = keep
    gaps: GapState = GapState.VERIFIED


RUN, CANCEL = "run R", "cancel R"
AGAIN = ("plan redrive orders --from ", "approve P --by NAME", "run P")
OPEN = GapState.OPEN
CASES = {
    "the configuration was changed": Case(change_configuration, (CANCEL, *AGAIN)),
    "the topic was made anew": Case(make_topic_anew, (CANCEL,), gaps=OPEN),
    "the topic was deleted in mid-run": Case(delete_topic_in_mid_run, (CANCEL,), gaps=OPEN),
    "the target was deleted": Case(delete_other_target, (CANCEL, *AGAIN)),
    "the source has expired": Case(expire_source, (RUN,)),
    "killed before all is read back": Case(lambda story: story.kill_at(READ_BACK), (RUN,)),
    "the canary expired": Case(partial(expire_at, CANARY), (CANCEL,), gaps=OPEN),
    "a message was sent again": Case(send_again, (CANCEL,), gaps=OPEN),
    "a transaction is open": Case(hide, (RUN,), await_end),
    "the window is closed": Case(close_window, (RUN,), open_window),
    "killed when it was to pause": Case(pause_and_kill, ("resume R",)),
    "killed when it was to be cancelled": Case(
        lambda story: story.kill_at(CANARY, partial(story.ask, "cancel")), (CANCEL, *AGAIN)
    ),
    "cancelled when all was sent": Case(cancel_sent, (), gaps=OPEN),
    "the Kafka ledger was deleted": Case(delete_kafka_ledger, (CANCEL,), gaps=OPEN),
    "the Kafka ledger has lost records": Case(delete_ledger_records, (CANCEL,), gaps=OPEN),
    "staged messages were changed": Case(damage_staging, (CANCEL, *AGAIN)),
    "staged messages were lost": Case(lose_staging, (RUN,), restore_staging),
    "another group reads the topic": Case(add_reader, (CANCEL, *AGAIN), deliver),
}


@pytest.mark.parametrize("name", CASES)
def test_fault_122_the_commands_that_are_printed_lead_to_an_end(story: Story, name: str) -> None:
    require(story, CASES[name])
    told = story.shop.call("gaps", "orders", code=None).out
    if name in ("a message was sent again", "cancelled when all was sent"):
        assert "which ended before all was read back" in told
        assert "plan redrive" not in told


ARCHIVED = {
    "expired before it was read back": Case(
        partial(expire_at, READ_BACK),
        (CANCEL, f"{AGAIN[0]}archive:P", "approve Q --by NAME", "run Q"),
    ),
    "the archive was deleted": Case(delete_archive, (RUN,)),
}


@pytest.mark.parametrize("name", ARCHIVED)
def test_fault_122_from_an_archive(archived: Story, name: str) -> None:
    require(archived, ARCHIVED[name])


def require(story: Story, case: Case) -> None:
    recovery = case.arrange(story)
    case.mend(story)
    typed = follow(story.call, recovery)
    assert len(typed) == len(case.typed), typed
    assert all(map(str.startswith, typed, case.typed)), typed
    if case.arrange is not send_again:
        story.judge({case.gaps})


def test_fault_132_records_of_the_kafka_ledger_are_deleted(story: Story) -> None:
    """The copy in SQL has noticed: a plan says so, and on that copy the rest is put back once."""
    shop, command = story.shop, story.find_plan()
    story.call("cancel", delete_ledger_records(story))
    assert "plan redrive" not in shop.call("gaps", "orders").out
    refused = shop.call(*command, "--json", code=5).error
    assert "has lost records" in refused["message"]
    planned = shop.call(*command, "--allow", "ledger", "--json").document
    assert planned["counts"]["put_back"] > 0
    shop.call("approve", planned["id"], "--by", "Ada")
    shop.call("run", planned["id"])
    assert dict(keys_of(read_sent(shop))) == ALL
