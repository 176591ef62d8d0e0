"""What audits found lost is on record, and is put back: by a rebuild, by a redrive, at night."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from confluent_kafka import Consumer, Producer

from backlogctl.clock import Deadline
from backlogctl.errors import InvalidTransition
from backlogctl.monitoring.offsets.observation import observe_stream
from backlogctl.replay.engine.plan import RunOrigin
from backlogctl.replay.kinds.redrive import planning
from backlogctl.replay.kinds.redrive.plan import RedriveOptions
from backlogctl.replay.runbooks.nights import NightWork, Tonight, find_night_work
from backlogctl.values import Cause, GapState
from backlogctl_delivery.sequenced.sequence import Stamp, hash_topic, write_stamp
from tests.kit.following import follow
from tests.kit.kafka import commit, move_log_start, set_config, set_offsets_raw, wait_until
from tests.kit.shop import PROCESSED, Said, Shop, place
from tests.spark_backfill.world import ORDERS, encode_order, fill_table, make_order, open_database

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("spark")]

SETTLED = ("--grace", "1ms")
NEVER_SENT = frozenset({40, 41, 90, 133})
TOTAL = 200
CONSUMED = {"database": "shop", "table": "processed", "column": "order_id"}


def send_orders(shop: Shop, numbers: range, *, leave_out: frozenset[int] = frozenset()) -> None:
    """As a numbering producer does; it does not know of those that are left out. The topic keeps
    them, however old they are."""
    set_config(shop.properties, shop.topic, {"retention.ms": "-1"})
    producer = Producer(shop.properties)
    taken: Counter[int] = Counter()
    for number in numbers:
        row, partition = make_order(number), place(number)
        sequence = taken[partition]
        taken[partition] += 1
        if number in leave_out:
            continue
        headers: Any = [
            ("order-id", str(number).encode()),
            *write_stamp(make_stamp(shop, partition, sequence)),
        ]
        producer.produce(
            shop.topic,
            encode_order(row),
            str(number).encode(),
            partition,
            timestamp=round(row["updated_at"].timestamp() * 1000),
            headers=headers,
        )
    assert producer.flush(60) == 0


def make_stamp(shop: Shop, partition: int, sequence: int) -> Stamp:
    return Stamp("till", 1, hash_topic(shop.topic), partition, sequence)


def describe_events(shop: Shop, **more: object) -> None:
    """A table of events, each known by a header; by itself nothing says what was handled."""
    source = {
        "database": "shop",
        "table": "orders",
        "primary_key": ["order_id"],
        "time_column": "updated_at",
        "mutable": False,
        "message": {
            "key": "order_id",
            "value": {"json": ["order_id", "user_id", "status", "amount", "updated_at"]},
            "headers": {"order-id": "cast(order_id as string)"},
        },
        "identity": {"row": "order_id", "message": "header:order-id"},
        "stale": "events",
        **more,
    }
    shop.write_config(source=source)


def audit_twice(shop: Shop, name: str, code: int) -> dict[str, Any]:
    """The first look takes the sample by which the second knows how old all is."""
    shop.call("audit", name, shop.stream, *SETTLED, "--json", code=2)
    return shop.call("audit", name, shop.stream, *SETTLED, "--json", code=code).document


def put_back(shop: Shop, planned: dict[str, Any]) -> None:
    shop.call("approve", planned["id"], "--by", "Ada")
    assert shop.call("run", planned["id"], "--json").document["state"] == "verified"


def look_at_night(shop: Shop) -> NightWork:
    workspace = shop.open()
    origin = RunOrigin(scheduler="test", dag_id="nightly_backfill", run_id="one")
    stream = workspace.config.stream(shop.stream)
    return find_night_work(workspace, stream, datetime.now(UTC), origin)


def test_what_a_producer_lost_is_rebuilt_once(empty_shop: Shop) -> None:
    shop = empty_shop
    describe_events(shop)
    fill_table(shop.url, ORDERS, [make_order(number) for number in range(TOTAL)])
    send_orders(shop, range(TOTAL), leave_out=NEVER_SENT)
    found = audit_twice(shop, "sequence", 1)
    assert found["missing"] == len(NEVER_SENT)
    assert found["next_commands"] == ["backlogctl plan rebuild orders"]
    gaps = shop.open().ledger.gaps.list(shop.stream)
    assert {gap.id for gap in gaps} == set(found["gaps"])
    assert {gap.cause for gap in gaps} == {Cause.PRODUCER_GAP}
    assert sum(gap.count or 0 for gap in gaps) == len(NEVER_SENT)
    told = shop.call("gaps", shop.stream).out
    assert "producer gap" in told
    assert "backlogctl plan rebuild orders" in told
    again = shop.call("audit", "sequence", shop.stream, *SETTLED, "--json", code=1).document
    assert again["gaps"] == found["gaps"], "seen again they are the same"

    planned = shop.call("plan", "rebuild", shop.stream, "--json").document
    assert (planned["verdict"], planned["counts"]["rebuilt"]) == ("exact", len(NEVER_SENT)), planned
    put_back(shop, planned)
    assert Counter(shop.read_injected()) == Counter(
        (place(number), str(number).encode(), encode_order(make_order(number)))
        for number in NEVER_SENT
    )
    assert {gap.state for gap in shop.open().ledger.gaps.list()} == {GapState.VERIFIED}
    found = audit_twice_clean(shop)
    assert [one["check"] for one in found["findings"]] == ["put-back"]
    assert shop.call("plan", "rebuild", shop.stream, "--json", code=5).error["code"] == "refused"
    assert shop.call("report", planned["id"], "--html", "report.html").code == 0
    assert "never reached the topic" in (shop.directory / "report.html").read_text()


def audit_twice_clean(shop: Shop) -> dict[str, Any]:
    return shop.call("audit", "sequence", shop.stream, *SETTLED, "--json").document


def test_a_row_that_no_producer_numbered_is_surplus(empty_shop: Shop) -> None:
    """It may never have been meant to be sent: nobody sends it by guess."""
    shop = empty_shop
    describe_events(shop)
    fill_table(shop.url, ORDERS, [make_order(number) for number in range(TOTAL)])
    # 41 is rolled back before it is sent: it takes no number.
    send_orders(shop, range(41), leave_out=frozenset({40}))
    send_more(shop, range(42, TOTAL))
    audit_twice(shop, "sequence", 1)
    planned = shop.call("plan", "rebuild", shop.stream, "--json").document
    here = [row for row in planned["partitions"] if row["partition"] == place(40)]
    if place(41) == place(40):
        assert (planned["verdict"], here[0]["surplus"]) == ("surplus", 1)
    else:
        assert planned["verdict"] == "exact"
    shop.call("reject", planned["id"])


def send_more(shop: Shop, numbers: range) -> None:
    """Goes on where `send_orders(range(41))` stopped."""
    producer = Producer(shop.properties)
    taken = Counter(place(number) for number in range(41))
    for number in numbers:
        partition = place(number)
        headers: Any = [
            ("order-id", str(number).encode()),
            *write_stamp(make_stamp(shop, partition, taken[partition])),
        ]
        taken[partition] += 1
        at = round(make_order(number)["updated_at"].timestamp() * 1000)
        producer.produce(
            shop.topic,
            encode_order(make_order(number)),
            str(number).encode(),
            partition,
            timestamp=at,
            headers=headers,
        )
    assert producer.flush(60) == 0


def test_what_was_never_handled_is_put_back_at_night(empty_shop: Shop) -> None:
    """While the log has it, from there; what has expired since comes from the table."""
    shop = empty_shop
    left_out = {5, 6, 77, 150}
    describe_events(shop, consumed=CONSUMED)
    fill_table(shop.url, ORDERS, [make_order(number) for number in range(TOTAL)])
    handled = [{"order_id": number} for number in range(TOTAL) if number not in left_out]
    fill_table(shop.url, PROCESSED, handled, "processed")
    send_orders(shop, range(TOTAL))
    set_offsets_raw(shop.properties, shop.group, shop.topic, shop.read_ends())
    # The first look takes the sample; what is committed now is old enough at once.
    found = shop.call("audit", "consumed", shop.stream, *SETTLED, "--json", code=1).document
    assert found["missing"] == len(left_out)
    assert found["next_commands"] == ["backlogctl plan redrive orders --from unprocessed"]
    refused = shop.call("plan", "rebuild", shop.stream, "--json", code=5).error
    assert "--from unprocessed" in refused["message"]
    told = shop.call(
        "plan", "redrive", shop.stream, "--from", "unprocessed", "--key", "5", "--json", code=2
    ).error
    assert "'key' does not go with it" in told["message"]

    # Retention takes the oldest of them before the night.
    move_log_start(shop.properties, shop.topic, {place(5): 4})
    night = look_at_night(shop)
    assert (night.action, "the stream's approval" in night.why) == (Tonight.ASK, True)
    assert look_at_night(shop).recovery == night.recovery, "asked twice it is the same plan"
    kinds = []
    while (night := look_at_night(shop)).action is Tonight.ASK:
        planned = shop.call("show", night.recovery, "--json").document
        kinds.append(planned["kind"])
        put_back(shop, planned)
    assert (night.action, sorted(kinds)) == (Tonight.NOTHING, ["rebuild", "redrive"])
    assert Counter(key for _, key, _ in shop.read_injected()) == Counter(
        str(number).encode() for number in left_out
    )
    assert not shop.open().ledger.gaps.list(shop.stream, [GapState.OPEN])
    found = shop.call("audit", "consumed", shop.stream, *SETTLED, "--json").document
    assert "coming-again" in {one["check"] for one in found["findings"]}
    assert (found["verdict"], found["missing"]) == ("clean", 0)


def test_a_cancelled_redrive_opens_its_gaps_again(empty_shop: Shop) -> None:
    shop = empty_shop
    describe_events(shop, consumed=CONSUMED)
    fill_table(shop.url, ORDERS, [make_order(number) for number in range(30)])
    fill_table(shop.url, PROCESSED, [{"order_id": n} for n in range(30) if n != 7], "processed")
    send_orders(shop, range(30))
    commit(shop.properties, shop.group, shop.topic, shop.read_ends())
    shop.call("audit", "consumed", shop.stream, *SETTLED, code=1)
    words = ("plan", "redrive", shop.stream, "--from", "unprocessed", "--json")
    first = shop.call(*words).document
    second = shop.call(*words).document
    assert second["id"] != first["id"], "a new plan takes the place of one that nobody approved"
    shop.call("approve", second["id"], "--by", "Ada")
    shop.call("cancel", second["id"])
    (gap,) = shop.open().ledger.gaps.list()
    assert (gap.state, gap.cause) == (GapState.OPEN, Cause.UNPROCESSED)


def test_what_was_handled_since_is_not_put_back(empty_shop: Shop) -> None:
    """Somebody set the group back, and it handled them: a plan leaves them out, an audit closes."""
    shop = empty_shop
    describe_events(shop, consumed=CONSUMED)
    fill_table(shop.url, ORDERS, [make_order(number) for number in range(60)])
    left_out = {7, 8, 30}
    handled = [{"order_id": number} for number in range(60) if number not in left_out]
    fill_table(shop.url, PROCESSED, handled, "processed")
    send_orders(shop, range(60))
    set_offsets_raw(shop.properties, shop.group, shop.topic, shop.read_ends())
    shop.call("audit", "consumed", shop.stream, *SETTLED, code=1)
    words = ("plan", "redrive", shop.stream, "--from", "unprocessed", "--json")

    handle(shop, 7, 8)
    redrive = "backlogctl plan redrive orders --from unprocessed"
    assert redrive in shop.call("status", shop.stream).out
    planned = shop.call(*words).document
    counts = planned["counts"]
    assert (counts["handled"], counts["staged"]) == (2, 1)
    told = " ".join(shop.call("status", shop.stream).out.split())
    assert "committed and never handled, and are in the log" in told
    assert f"backlogctl approve {planned['id']}" in told
    assert redrive not in told, "it is planned already"
    handle(shop, 30)
    refused = shop.call(*words, code=5).error
    assert "3 were handled since" in refused["message"]
    assert "backlogctl waive" in refused["hint"]
    assert look_at_night(shop).action is Tonight.ASK, "the plan that is there waits for an answer"
    (waiting,) = shop.open().ledger.recoveries.list(shop.stream)[-1:]
    shop.call("reject", waiting.id)
    night = look_at_night(shop)
    assert (night.action, "handled since" in night.why) == (Tonight.NOTHING, True)

    found = shop.call("audit", "consumed", shop.stream, *SETTLED, "--json").document
    assert found["verdict"] == "clean"
    gaps = shop.open().ledger.gaps.list(shop.stream)
    assert {gap.state for gap in gaps} == {GapState.WAIVED}
    assert all("handled since" in gap.reason for gap in gaps)


def handle(shop: Shop, *numbers: int) -> None:
    engine = open_database(shop.url)
    with engine.begin() as connection:
        for number in numbers:
            connection.execute(sa.text("INSERT INTO processed VALUES (:id)"), {"id": number})
    engine.dispose()


def lose_handling(shop: Shop, total: int, *left_out: int) -> None:
    """All is committed, and the consumer's table lacks these."""
    describe_events(shop, consumed=CONSUMED)
    fill_table(shop.url, ORDERS, [make_order(number) for number in range(total)])
    handled = [{"order_id": number} for number in range(total) if number not in left_out]
    fill_table(shop.url, PROCESSED, handled, "processed")
    send_orders(shop, range(total))


def test_a_gap_with_a_message_that_is_left_out_stays_open(empty_shop: Shop) -> None:
    """Put back too often already: it is not lost from sight."""
    shop = empty_shop
    lose_handling(shop, 60, 7)
    poison: Any = [("order-id", b"99"), ("backlog-replays", b"3")]
    producer = Producer(shop.properties)
    producer.produce(shop.topic, b"{}", b"99", 0, headers=poison)
    assert producer.flush(60) == 0
    set_offsets_raw(shop.properties, shop.group, shop.topic, shop.read_ends())
    shop.call("audit", "consumed", shop.stream, *SETTLED, code=1)
    planned = shop.call("plan", "redrive", shop.stream, "--from", "unprocessed", "--json").document
    assert (planned["counts"]["staged"], planned["counts"]["replays"]) == (1, 1)
    put_back(shop, planned)
    gaps = shop.open().ledger.gaps.list(shop.stream)
    assert sorted((gap.state, gap.count) for gap in gaps) == [
        (GapState.OPEN, 1),
        (GapState.VERIFIED, 1),
    ]


def test_a_gap_that_grows_while_it_is_planned_is_planned_again(
    empty_shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = empty_shop
    lose_handling(shop, 60, 7)
    set_offsets_raw(shop.properties, shop.group, shop.topic, shop.read_ends())
    shop.call("audit", "consumed", shop.stream, *SETTLED, code=1)
    workspace = shop.open()
    (gap,) = workspace.ledger.gaps.list(shop.stream)
    compute = planning.compute_redrive

    def grow(*arguments: Any) -> Any:
        plan = compute(*arguments)
        end = gap.end or 0
        workspace.ledger.gaps.record(replace(gap, start=end, end=end + 1))
        return plan

    monkeypatch.setattr(planning, "compute_redrive", grow)
    stream = workspace.config.stream(shop.stream)
    with pytest.raises(InvalidTransition, match="it grew while it was planned"):
        planning.plan_redrive(workspace, stream, RedriveOptions(source="unprocessed"))
    (gap,) = workspace.ledger.gaps.list(shop.stream)
    assert (gap.state, gap.count) == (GapState.OPEN, 2)


def test_rows_around_a_hole_whose_messages_have_expired_are_said(empty_shop: Shop) -> None:
    """They look as if they had never been sent: such a plan is not exact, whatever the totals."""
    shop = empty_shop
    describe_events(shop)
    fill_table(shop.url, ORDERS, [make_order(number) for number in range(TOTAL)])
    send_orders(shop, range(TOTAL), leave_out=NEVER_SENT)
    audit_twice(shop, "sequence", 1)
    move_log_start(shop.properties, shop.topic, {place(40): 3})
    planned = shop.call("plan", "rebuild", shop.stream, "--json").document
    assert planned["verdict"] == "surplus"
    assert any("retention has taken messages" in reason for reason in planned["reasons"])
    shop.call("reject", planned["id"])


def test_a_message_and_its_unhandled_copy_are_one_message(empty_shop: Shop) -> None:
    """Put back by hand, and left out again: both lie in gaps, and one of them is put back."""
    shop = empty_shop
    lose_handling(shop, 60, 7)
    set_offsets_raw(shop.properties, shop.group, shop.topic, shop.read_ends())
    shop.call("audit", "consumed", shop.stream, *SETTLED, code=1)
    (gap,) = shop.open().ledger.gaps.list(shop.stream)
    place_said = f"{gap.partition}:{gap.start}"
    put_back(
        shop,
        shop.call(
            "plan", "redrive", shop.stream, "--from", "log", "--offsets", place_said, "--json"
        ).document,
    )
    read_and_commit(shop)
    # Bounded, it closes no gap that is on record.
    since = ("--since", "2020-01-01T00:00Z")
    shop.call("audit", "consumed", shop.stream, *SETTLED, *since, code=1)
    assert len(shop.open().ledger.gaps.list(shop.stream, [GapState.OPEN])) == 2
    planned = shop.call("plan", "redrive", shop.stream, "--from", "unprocessed", "--json").document
    assert (planned["counts"]["staged"], planned["counts"]["repeated"]) == (1, 1)
    put_back(shop, planned)
    assert not shop.open().ledger.gaps.list(shop.stream, [GapState.OPEN])
    # It is known as put back from now on, wherever it is chosen from.
    words = ("plan", "redrive", shop.stream, "--from", "log", "--offsets", place_said, "--json")
    assert "1 are put back already" in shop.call(*words, code=5).error["message"]


def read_and_commit(shop: Shop) -> None:
    """As the group's own consumer, which does nothing with what it reads."""
    settings = {"group.id": shop.group, "enable.auto.commit": False}
    consumer = Consumer({**shop.properties, **settings, "auto.offset.reset": "earliest"})
    consumer.subscribe([shop.topic])
    wait_until(lambda: consumer.poll(1.0) is not None, what="the copy is read")
    consumer.commit(asynchronous=False)
    consumer.close()


def list_printed(said: Said) -> list[list[str]]:
    """The commands among what was printed, as a shell reads them."""
    lines = [line.strip() for line in said.out.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("backlogctl ")]


def age_samples(shop: Shop) -> None:
    """As if the stream had been looked at half an hour ago, too."""
    workspace = shop.open()
    stream = workspace.config.stream(shop.stream)
    seen = observe_stream(workspace.ledger, stream, shop.properties, Deadline(30)).sample
    before = replace(seen, taken_at=seen.taken_at - timedelta(minutes=30))
    workspace.ledger.samples.add(before)


def test_counts_lead_to_the_repair_of_what_was_never_sent_and_never_handled(
    empty_shop: Shop,
) -> None:
    """By the commands that are printed, word for word."""
    shop, unhandled = empty_shop, {7, 60, 61}
    describe_events(shop, consumed=CONSUMED)
    fill_table(shop.url, ORDERS, [make_order(number) for number in range(TOTAL)])
    handled = set(range(TOTAL)) - NEVER_SENT - unhandled
    fill_table(shop.url, PROCESSED, [{"order_id": n} for n in sorted(handled)], "processed")
    send_orders(shop, range(TOTAL), leave_out=NEVER_SENT)
    set_offsets_raw(shop.properties, shop.group, shop.topic, shop.read_ends())
    age_samples(shop)
    sequence, again, consumed = list_printed(shop.call("audit", "counts", shop.stream, code=1))
    assert [words[1] for words in (sequence, again, consumed)] == ["sequence", "counts", "consumed"]
    for words in (sequence, consumed):
        plan = list_printed(shop.call(*words, code=1))[-1]
        assert plan[0] == "plan"
        said = shop.call(*plan)
        (planned,) = (one for one in shop.open().ledger.recoveries.list() if one.state == "planned")
        follow(shop.call, planned.id, first=said)
    put_back = Counter(key for _, key, _ in shop.read_injected())
    assert put_back == Counter(str(number).encode() for number in NEVER_SENT | unhandled)
    handle(shop, *NEVER_SENT, *unhandled)
    assert shop.call(*again, "--json").document["verdict"] == "clean"
    assert shop.call("audit", "counts", shop.stream, "--json").document["verdict"] == "clean"


def test_without_the_consumers_table_nothing_is_put_back_by_guess(empty_shop: Shop) -> None:
    shop = empty_shop
    lose_handling(shop, 30, 7)
    set_offsets_raw(shop.properties, shop.group, shop.topic, shop.read_ends())
    shop.call("audit", "consumed", shop.stream, *SETTLED, code=1)
    describe_events(shop)
    said = shop.call("plan", "redrive", shop.stream, "--from", "unprocessed", "--json", code=2)
    assert "source.consumed" in said.error["hint"]
