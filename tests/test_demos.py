"""The demos, small: what their audits can fail of, what their figures mean, that nothing is left."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Message
from rich.console import Console

from backlogctl.config import load_config
from backlogctl.errors import BacklogError
from backlogctl.kafka.admin import committed_offsets
from backlogctl.kafka.clients import make_admin, make_producer
from backlogctl.manifests import MESSAGE_BYTES
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.spark_backfill.messages.staging import CHUNK_SECONDS
from backlogctl.values import DiskFloor
from backlogctl_delivery.stamps import EVENT_ID
from examples import demo, expand, offload, rebuild
from examples.delivery import story as delivery
from examples.delivery.facts import CONSUMER, Facts, Row, Sent, audit_facts, create_tables
from examples.delivery.order_consumer import OrderConsumer
from examples.delivery.story import Result
from examples.expand import read_logs
from examples.shop import CONFIG, Size, count_expected, render_configuration
from tests.conftest import MakeTopic
from tests.kit.kafka import properties_of, wait_until

pytestmark = pytest.mark.timeout(600)


SMALL = delivery.Size(rate=60.0)
ROWS = tuple(Row(f"o-{number}", f"c-{number % 2}", number // 2) for number in range(8))
SENT = tuple(Sent(f"m-{row.id}", row) for row in ROWS)
KILLS = {"sender": {"p8.2.claim.before": 1}}
UNDONE = Row("o-9", "c-0", 9)
GOOD = Facts(
    begun=frozenset({*(row.id for row in ROWS), UNDONE.id}),
    committed=ROWS,
    # Sent again after a crash, behind a later one of its key.
    topic=(*SENT[:4], SENT[1], *SENT[4:]),
    handled=ROWS,
    dropped=1,
)


@pytest.mark.kafka
@pytest.mark.timeout(600)
def test_each_order_and_payment_is_handled_once_whatever_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    console = Console(file=io.StringIO(), width=100)
    result = delivery.tell_story(console, SMALL)
    assert result.passed, result.to_json()
    document = result.to_json()
    for rows in ("orders", "payments"):
        assert document[rows]["handled"] == document[rows]["committed"] > 20
        assert document[rows]["rolled_back"] > 0
        assert document[rows]["dropped"] >= document[rows]["repeats"] >= SMALL.times
    died = [count for places in document["kills"].values() for count in places.values()]
    assert set(died) == {SMALL.times}, "as often at each place"
    assert {place for places in document["kills"].values() for place in places} == set(
        delivery.PLACES
    )
    assert document["broker_restarts"] == 1
    told = console.file.getvalue()  # type: ignore[attr-defined]
    for command in ("backlogctl outbox run", "backlogctl lookback run", "docs/outbox.md"):
        assert command in told
    assert "rolled back and never seen" in told.replace("\n", " ")
    assert not list(tmp_path.iterdir())
    assert not find_processes(str(tmp_path))


_STEPS = """
import time
from backlogctl_delivery.crashpoints import reach
for _ in range(20):
    reach("p8.1.added")
    reach("p8.1.hint.before")
time.sleep(60)
"""
_ENDED = "raise SystemExit('the table is gone')"


def make_steps(program: str) -> delivery.Part:
    places = ("p8.1.added", "p8.1.hint.before")
    return delivery.Part("order service", (sys.executable, "-c", program), places)


def test_each_dies_at_each_of_its_places_as_often_as_it_is_asked_for(tmp_path: Path) -> None:
    parts = [make_steps(_STEPS)]
    with delivery.playing(parts, tmp_path, {**os.environ}, 2) as (player,):
        assert list(delivery.start_again([player], 2))
        assert player.kills == {"p8.1.added": 2, "p8.1.hint.before": 2}
        assert not player.has_died(), "now it works on"


def test_who_ends_in_another_way_was_not_killed(tmp_path: Path) -> None:
    with (
        delivery.playing([make_steps(_ENDED)], tmp_path, {**os.environ}, 2) as players,
        pytest.raises(BacklogError, match="it ended by itself: the table is gone"),
    ):
        list(delivery.start_again(players, 2))
    assert set(players[0].kills.values()) == {0}


@pytest.mark.kafka
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_a_story_that_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    story = subprocess.Popen(
        [sys.executable, "-m", "examples.demo", "delivery"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: any(file.stat().st_size for file in tmp_path.glob("*/orders.begun")))
        assert len(find_processes(str(tmp_path))) >= 5
        story.send_signal(number)
        if number == signal.SIGTERM:
            time.sleep(0.2)
            story.send_signal(number)  # impatience does not disturb the cleaning up
        assert story.wait(120) != 0
    finally:
        story.kill()
        story.wait()
    wait_until(lambda: not find_processes(str(tmp_path)), 30, "its processes are gone")
    assert number == signal.SIGKILL or not list(tmp_path.iterdir())


def test_the_audit_passes_where_repeats_were_dropped() -> None:
    audit = audit_facts(GOOD)
    assert audit.passed
    assert (audit.committed, audit.handled, audit.rolled_back) == (8, 8, 1)
    assert (audit.repeats, audit.dropped) == (1, 1)
    assert audit.tell("orders") == (
        "8 orders in the table, 8 handled, 0 missing, 0 twice, 1 repeat dropped, "
        "1 rolled back and never seen"
    )


def swap(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """The first two of a key in the wrong order."""
    return (rows[2], rows[1], rows[0], *rows[3:])


@pytest.mark.parametrize(
    ("spoil", "name", "ids"),
    [
        (lambda f: replace(f, handled=(*f.handled, ROWS[3])), "twice", ("o-3",)),
        (lambda f: replace(f, handled=f.handled[1:]), "missing", ("o-0",)),
        # As many rows as there should be: what counts alone would not see.
        (lambda f: replace(f, handled=(*f.handled[1:], ROWS[7])), "missing", ("o-0",)),
        (lambda f: replace(f, topic=SENT[1:]), "missing", ("o-0",)),
        (lambda f: replace(f, topic=(*f.topic, Sent("m-9", UNDONE))), "not_committed", ("o-9",)),
        (lambda f: replace(f, handled=(*f.handled, UNDONE)), "not_committed", ("o-9",)),
        # Another number than its row has.
        (
            lambda f: replace(f, topic=(*f.topic, Sent("m-o-0", Row("o-0", "c-0", 5)))),
            "not_committed",
            ("o-0",),
        ),
        (lambda f: replace(f, handled=swap(f.handled)), "out_of_order", ("c-0",)),
        (
            lambda f: replace(f, topic=(SENT[2], SENT[1], SENT[0], *SENT[3:])),
            "out_of_order",
            ("c-0",),
        ),
        (lambda f: replace(f, topic=(*f.topic, Sent("other", ROWS[0]))), "other_id", ("o-0",)),
        (
            lambda f: replace(f, topic=(*SENT[1:], Sent("m-o-1", ROWS[0]))),
            "other_id",
            ("o-0", "o-1"),
        ),
    ],
)
def test_the_audit_fails(spoil: Callable[[Facts], Facts], name: str, ids: tuple[str, ...]) -> None:
    audit = audit_facts(spoil(GOOD))
    assert not audit.passed
    assert audit.list_wrong()[name] == ids
    assert audit.to_json()["ids"][name] == list(ids)
    assert not Result({"orders": audit}, KILLS, 1).passed


def test_a_story_without_a_row_a_kill_or_a_repeat_proves_nothing() -> None:
    empty = audit_facts(Facts(frozenset(), (), (), (), 0))
    assert not empty.passed
    assert Result({"orders": audit_facts(GOOD)}, KILLS, 1).passed
    assert not Result({"orders": audit_facts(GOOD)}, {"sender": {"a": 1, "b": 0}}, 1).passed
    for facts in (replace(GOOD, dropped=0), replace(GOOD, topic=SENT)):
        result = Result({"orders": audit_facts(facts)}, KILLS, 1)
        assert result.audits["orders"].passed
        assert not result.passed, "nothing was repeated, or nothing dropped"


def test_the_command_fails_with_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    audit = audit_facts(replace(GOOD, handled=ROWS[1:]))
    told = Result({"orders": audit}, KILLS, 1)
    monkeypatch.setattr(delivery, "tell_story", lambda _: told)
    assert demo.main(["delivery", "--json"]) == 1


def test_look_backs_configuration_loads(tmp_path: Path) -> None:
    (tmp_path / "backlog.yaml").write_text(delivery.render_configuration("localhost:9092", 8080))
    config = load_config(tmp_path / "backlog.yaml", {})
    assert config.look_back is not None
    assert set(config.look_back.services) == {"payments"}


@pytest.mark.parametrize("option", [("--report", "x.html"), ("--consumed",), ("--secure",)])
def test_an_option_of_another_story_is_refused(
    option: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refusal:
        demo.main(["delivery", *option])
    assert refusal.value.code == 2
    assert "goes with" in capsys.readouterr().err


# The demo of an expansion: the whole story, small; what its figures mean; that nothing is left.

SMALL_BACKLOG = Size(
    orders=90_000,  # a busy machine begins late, and the consumers read meanwhile
    customers=1_000,
    partitions=2,
    factor=3,
    rate=400,
    arriving=20,
    measured=0.5,
    least_ratio=1.5,
    most_seconds=60.0,
)
SECOND = 1_000_000_000


def write_log(directory: Path, name: str, lines: Iterable[tuple[float, int, int]]) -> None:
    """Lines of (second, customer, number)."""
    text = "".join(f"{int(at * SECOND)} c-{who:06} {number}\n" for at, who, number in lines)
    (directory / f"{name}.log").write_text(text)


@pytest.mark.kafka
def test_a_small_backlog_is_drained_and_the_layout_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    console = Console(file=io.StringIO(), width=100)
    result = expand.tell_story(console, SMALL_BACKLOG)
    failed = {name for name, is_right in result.checks.items() if not is_right}
    # How fast it was says nothing on a busy machine, where the first may be through too early.
    assert failed <= {"all_consumers_worked", "fast_enough", "quick_enough"}, result.checks
    document = result.to_json()
    assert document["orders"]["handled"] == document["orders"]["published"] > SMALL_BACKLOG.orders
    assert document["before"]["consumers"] == 2
    assert document["during"]["consumers"] in range(1, 7)
    assert list(document["steps"])[-1] == "remove_topic"
    told = console.file.getvalue()  # type: ignore[attr-defined]
    assert "drained" in told.splitlines()[-1]
    assert not list(tmp_path.iterdir())
    assert not find_processes(str(tmp_path))


def test_rates_are_taken_while_all_consumers_are_at_work(tmp_path: Path) -> None:
    """From the last to begin to the first that is through; the rest counts for the whole."""
    write_log(tmp_path, "orders.1", [(1 + n / 10, 1, n + 1) for n in range(11)])
    write_log(tmp_path, "orders.2", [(1.5 + n / 10, 2, n + 1) for n in range(11)])
    # An order that came later: not a part of the backlog, which is 11 a customer.
    write_log(tmp_path, "orders.recovery.r-1.3", [(5, 3, 1), (6, 3, 2), (9, 3, 12)])
    handled = read_logs(tmp_path)
    pace = handled.measure("before", 11)
    assert pace.consumers == 2
    assert (pace.began, pace.ended) == (1.5, 2.0)
    assert pace.rate == pytest.approx(20.0)
    assert pace.rate_overall == pytest.approx(22 / 1.5)
    assert handled.measure("during", 11).last == 6.0
    assert handled.last_of_expansion == 9.0
    assert handled.all_back is None


def test_orders_are_audited_over_both_hand_overs(tmp_path: Path) -> None:
    """Handled again is told, and is not out of order; what is missing or too early is."""
    write_log(tmp_path, "orders.1", [(1, 0, 1), (1, 1, 1), (2, 1, 2)])
    write_log(tmp_path, "orders.recovery.r-1.2", [(3, 0, 1), (3, 0, 2), (4, 0, 3)])
    write_log(tmp_path, "orders.3", [(5, 0, 4), (6, 1, 4)])
    handled = read_logs(tmp_path)
    assert [len(part) for part in (handled.before, handled.during, handled.after)] == [1, 1, 1]
    found = handled.audit(8, 2)
    assert (found.handled, found.twice, found.missing, found.out_of_order) == (7, 1, 1, 1)
    assert handled.all_back == 5.0


def test_every_customer_has_as_many_orders_as_were_published() -> None:
    assert dict(count_expected(7, 3)) == {0: 3, 1: 2, 2: 2}


def test_the_configuration_loads(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(render_configuration(Size()))
    stream = load_config(tmp_path / CONFIG, {"SHOP_KAFKA": "localhost:9092"}).stream("orders")
    assert stream.consumers is not None
    assert (stream.consumers.replicas, stream.expand.factor) == (3, 10)


# The story of the lost orders on a broker with logins and rules, as `make demo-secure` tells it.


@pytest.mark.timeout(600)
def test_a_user_with_the_documented_rights_puts_every_order_back_once() -> None:
    out = io.StringIO()
    audit = rebuild.tell_story(Console(file=out, width=120), secure=True)
    assert audit.passed, out.getvalue()
    told = out.getvalue()
    assert "backlogctl acl" in told
    assert "a-long-password" not in told


@pytest.mark.kafka
def test_what_is_committed_was_handled(
    kafka: EmbeddedKafka, topic: MakeTopic, group: str, tmp_path: Path
) -> None:
    """An asynchronous commit without offsets takes along what the next batch has read by then."""
    name, url = topic(1), f"sqlite:///{tmp_path / 'warehouse.db'}"
    properties = properties_of(kafka.bootstrap)
    create_tables(url, CONSUMER)
    producer = make_producer(properties)
    for number in range(1_000):
        row = json.dumps({"id": f"o-{number}", "number": number})
        producer.produce(name, row, b"k", headers=[(EVENT_ID, f"m-{number}".encode())])
    assert producer.flush(90) == 0

    class Dies(OrderConsumer):
        handled, alive = 0, True

        def handle(self, message: Message) -> None:
            if not self.alive:
                raise KeyboardInterrupt
            super().handle(message)
            self.handled += 1

    consumer = Dies(url, kafka.bootstrap, name, group)
    while consumer.handled == 0:
        consumer.work()
    consumer.alive = False
    with suppress(KeyboardInterrupt):
        consumer.work()
    consumer.close()
    found = committed_offsets(make_admin(properties), group, name, range(1))
    assert found == {0: consumer.handled}


def find_processes(word: str) -> list[str]:
    """Command lines and directories of the processes that have to do with a directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                told = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                place = str((entry / "cwd").readlink())
            except OSError:
                continue
            if word in told.decode(errors="replace") or word in place:
                found.append(told[:200].decode(errors="replace"))
    return found


def test_whatever_comes_meanwhile_the_archive_finds_room_again() -> None:
    """All orders that there can be, each in the topic once more, with our headers; and some
    chunks that a busy machine aborts."""
    size = offload.DiskSize()
    orders = size.filled * size.disk / size.padding + offload._LOOK_EACH
    orders += size.spare * size.disk / size.padding
    aborted = 2 * 5000 * CHUNK_SECONDS / size.partitions
    taken = (orders + aborted) * (size.padding + MESSAGE_BYTES)
    own = 10 * 2**20  # the broker's, and the last segment of each partition
    assert taken + own < size.disk - DiskFloor.parse("5%").count_bytes(size.disk)
