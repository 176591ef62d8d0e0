"""What retention takes next of what nobody has read, as a question and a report say it."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from backlogctl.errors import KafkaFailure
from backlogctl.kafka.admin import read_topic_id
from backlogctl.kafka.clients import make_admin
from backlogctl.replay.engine.approval import approve_plan
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.observe.retention import release_stream
from backlogctl.replay.present.report_page import render_summary
from backlogctl.replay.runbooks.descriptions import describe_body
from backlogctl.replay.runbooks.detection import (
    describe_loss_ahead,
    detect_backlog,
    note_loss_ahead,
    should_plan,
)
from backlogctl.replay.runbooks.holds import hold_topic, propose_hold
from backlogctl.values import Cause, RecoveryState
from tests.kit.kafka import join, leave_at, publish, set_config
from tests.kit.ledger import make_gap
from tests.kit.recoveries import (
    keep_plan,
    make_rebuild_plan,
    make_recovery,
    open_desk,
    print_text,
    report,
)
from tests.kit.shop import PARTITIONS, Shop
from tests.replay.runbooks.desks import make_rebuild

MINUTES, DAY = 60_000, timedelta(days=1)
NOBODY = "nobody is in the group, and retention takes what is unread in"
PUT_BACK = NOBODY.replace("unread", "put back")


def test_fault_143_nobody_reads_and_retention_comes(empty_shop: Shop) -> None:
    """Before it is approved, and after it was put back: how long is left, at the earliest."""
    shop, properties = empty_shop, empty_shop.properties
    set_config(properties, shop.topic, {"retention.ms": str(19 * MINUTES)})
    read = dict.fromkeys(range(PARTITIONS), 10)
    publish(properties, shop.topic, read)
    leave_at(properties, shop.group, shop.topic, read)
    workspace = shop.open()
    assert describe_loss_ahead(workspace, "orders") == ""
    told = describe_loss_ahead(workspace, "orders", puts_back=True)
    assert told == f"{PUT_BACK} 19 min at the earliest"
    # The choice: nothing is to be kept, unless a rebuild is about to put it back.
    stream = workspace.config.stream("orders")
    assert detect_backlog(workspace, stream).ahead is None
    topic_id = read_topic_id(make_admin(properties), shop.topic)[0]
    lost = make_gap(topic_id=topic_id, cause=Cause.EXPIRED)
    workspace.ledger.gaps.record(replace(lost, topic=shop.topic, group=shop.group))
    found = detect_backlog(workspace, stream)
    assert found.actions == ("rebuild",)
    assert found.ahead is not None
    assert found.ahead.sentence == told
    proposed = propose_hold(workspace, found, DAY)
    # It is put back at the end of the day, at the latest, and unread for 19 minutes from then on.
    assert (proposed.length, proposed.within) == ("2d", 86_400 + 19 * 60)

    publish(properties, shop.topic, {0: 10})
    told = describe_loss_ahead(workspace, "orders")
    assert re.fullmatch(rf"{NOBODY} 1[789] min( \d+ s)? at the earliest", told), told

    member = join(properties, shop.group, shop.topic)
    assert NOBODY not in describe_loss_ahead(workspace, "orders", puts_back=True)
    member.close()


def test_fault_143_a_report_says_it_at_its_end(empty_shop: Shop) -> None:
    """With its time; as it was before the recovery went on, it says nothing of now."""
    shop, properties = empty_shop, empty_shop.properties
    set_config(properties, shop.topic, {"retention.ms": str(19 * MINUTES)})
    leave_at(properties, shop.group, shop.topic, dict.fromkeys(range(PARTITIONS), 0))
    workspace = shop.open()
    planned = keep_plan(workspace, make_rebuild_plan(topic=shop.topic, group=shop.group))

    def tell() -> str:
        document, page = report(workspace, planned)
        told: str = document["ahead"]["told"]
        assert told.replace("`", "") in page.text
        assert told in " ".join(print_text(render_summary(document)).split())
        return told

    unknown = "Not known: nobody has looked since it came to this state; `backlogctl report {}`"
    assert tell() == f"{unknown.format(planned.id)} looks."
    assert note_loss_ahead(workspace, [planned]) == [f"{PUT_BACK} 19 min at the earliest"]
    asked = rf"As seen \d{{4}}-\S+ \S+Z, .* before this report: {PUT_BACK} 19 min at the earliest\."
    assert re.fullmatch(asked, tell())
    approve_plan(workspace, planned, by="ada")
    assert tell().startswith("Not known: ")
    for state in (RecoveryState.RUNNING, RecoveryState.VERIFIED):
        workspace.ledger.recoveries.advance(planned.id, state, "op", {"verified": {}})
    verified = workspace.ledger.recoveries.get(planned.id)
    assert note_loss_ahead(workspace, [verified, verified]) == []
    assert re.fullmatch(r"As seen .* before this report: no loss in sight\.", tell())

    publish(properties, shop.topic, {0: 10})
    said = shop.call("report", planned.id).out
    assert re.search(rf"As seen \S+ \S+Z: {NOBODY} 1[789] min", " ".join(said.split())), said
    assert tell().endswith("no loss in sight."), "a look of the shell is nobody's record"


def test_fault_143_by_its_size_retention_may_come_sooner(empty_shop: Shop) -> None:
    """What is put back pushes out what is older: when, nobody knows."""
    shop, properties = empty_shop, empty_shop.properties
    leave_at(properties, shop.group, shop.topic, dict.fromkeys(range(PARTITIONS), 0))
    set_config(properties, shop.topic, {"retention.ms": "-1", "retention.bytes": "100000000"})
    workspace = shop.open()
    assert describe_loss_ahead(workspace, "orders") == ""
    told = describe_loss_ahead(workspace, "orders", puts_back=True)
    assert told.startswith("whether retention will take what is unread is not known: `retention.by")
    set_config(properties, shop.topic, {"retention.ms": str(19 * MINUTES)})
    told = describe_loss_ahead(workspace, "orders", puts_back=True)
    assert told == f"{PUT_BACK} 19 min or sooner by its size"


def test_fault_143_163_what_is_ahead_can_be_held(empty_shop: Shop) -> None:
    """For as long as the loss asks for; one that is held for longer stays so."""
    shop, properties = empty_shop, empty_shop.properties
    set_config(properties, shop.topic, {"retention.ms": str(19 * MINUTES)})
    leave_at(properties, shop.group, shop.topic, dict.fromkeys(range(PARTITIONS), 0))
    publish(properties, shop.topic, {0: 10})
    workspace = shop.open()
    found = detect_backlog(workspace, workspace.config.stream("orders"))
    assert found.ahead is not None
    assert found.ahead.sentence.startswith(NOBODY)
    proposed = propose_hold(workspace, found, DAY)
    assert proposed.length == "6h"
    assert proposed.within == found.ahead.seconds <= 19 * 60
    assert proposed.body.startswith("**Loss ahead:** nobody is in the group")

    stream = workspace.config.stream("orders").model_copy(update={"auto_plan": True})
    assert (found.actions, found.occasion) == ((), "hold"), "there is nothing else to do"
    assert should_plan(workspace, stream, found)
    told = hold_topic(workspace, "orders", proposed.length)
    assert told.startswith(f"topic {shop.topic} is held until ")
    held = detect_backlog(workspace, stream)
    assert held.ahead is None or held.ahead.seconds > 6 * 3_600
    assert not should_plan(workspace, stream, held)
    (before,) = workspace.ledger.holds.list(stream="orders")
    hold_topic(workspace, "orders", "1h")
    (after,) = workspace.ledger.holds.list(stream="orders")
    assert before.until is not None
    assert after.until is not None
    assert after.until >= before.until
    release_stream(workspace, workspace.config.stream("orders"))


def test_what_cannot_be_read_is_unknown(desk: Workspace) -> None:
    """Such as of a stream that the file does not have any more."""
    told = describe_loss_ahead(desk, "renamed", puts_back=True)
    assert told.startswith("whether retention will take what is unread is not known: ")


def test_why_it_is_unknown_shows_no_secret(
    desk: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client library may put an address with its password into an error."""
    monkeypatch.setenv("SHOP_PASSWORD", "hunter2")
    other = tmp_path / "other"
    other.mkdir()
    open_desk(other, sources={"shop": {"url": "postgresql://ada:${env:SHOP_PASSWORD}@shop/db"}})

    def look(*_: object) -> None:
        raise KafkaFailure("postgresql://ada:hunter2@shop/db: no answer", subject="topic orders")

    detection = "backlogctl.replay.runbooks.detection"
    monkeypatch.setattr(f"{detection}.reach_clusters", lambda *_: {"main": {}})
    monkeypatch.setattr(f"{detection}.sample_stream", look)
    told = describe_loss_ahead(desk, "orders")
    assert "no answer" in told
    assert "hunter2" not in told


def test_it_is_in_front_of_what_is_decided(desk: Workspace) -> None:
    body = describe_body(desk, make_recovery(make_rebuild()), ahead=f"{NOBODY} 19 min")
    assert "**Loss ahead:** nobody is in the group" in body.split("\n\n")[1]
