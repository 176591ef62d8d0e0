"""Outboxes and look-back on the overview: a word, a sentence and the next command for each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from backlogctl.replay.web.deliveries import DeliveryLook
from backlogctl.replay.web.page.overview import DeliveryRow, list_rows
from tests.replay.web.page.delivered import SEEN, describe_deliveries, make_look_back, make_outbox
from tests.replay.web.page.night import SECRET, Night, make_stream
from tests.replay.web.page.story import tell_night
from tests.replay.web.page.visits import read, strip


@pytest.fixture
def delivering(tmp_path: Path) -> Iterator[Night]:
    """Outboxes and look-back are configured, and nobody has looked at them."""
    begun = Night.begin(
        tmp_path, streams={"orders": make_stream("orders")}, **describe_deliveries()
    )
    yield begun
    begun.ledger.close()


def tell(night: Night, look: DeliveryLook) -> DeliveryRow:
    (row,) = list_rows(night.config, (look,))
    return row


@pytest.mark.parametrize(
    ("figures", "standing", "sentence", "commands"),
    [
        ((0, 0, 0, None, None), "ok", "All that was committed is sent.", ()),
        ((1, 0, 0, 600.0, 600.0), "ok", "1 message is about to be sent.", ()),
        (
            *((2, 1, 0, 601.0, 601.0), "late"),
            "3 messages wait to be sent, the oldest for 10 min: does `backlogctl outbox run` run, "
            "and does Kafka answer?",
            ("backlogctl outbox list --outbox shop",),
        ),
        (
            *((0, 0, 1, 9_000.0, None), "parked"),
            "1 message is parked. It holds up later ones of the same key.",
            ("backlogctl outbox list --outbox shop --state parked",),
        ),
        (
            *((1, 0, 2, 9_000.0, 60.0), "parked"),
            "2 messages are parked. They hold up later ones of the same key. 1 other waits, the "
            "oldest for 1 min.",
            ("backlogctl outbox list --outbox shop --state parked",),
        ),
    ],
)
def test_an_outbox_says_how_it_stands(
    delivering: Night,
    figures: tuple[float, ...],
    standing: str,
    sentence: str,
    commands: tuple[str, ...],
) -> None:
    row = tell(delivering, make_outbox("shop", *figures))
    assert (row.standing, row.sentence, row.commands) == (standing, sentence, commands)


@pytest.mark.parametrize(
    ("ages", "standing", "sentence", "command"),
    [
        ({}, "ok", "No transaction is open; what was committed is sent.", ""),
        (
            {"prepared": (2, 5.0), "committed": (1, 5.0), "forwarding": (1, 2.0)},
            *("ok", "3 messages wait for a transaction to end. 1 message is about to be sent.", ""),
        ),
        (
            {"prepared": (1, 3_600.0), "forwarding": (4, 700.0)},
            "late",
            "1 message waits for a decision, the oldest for 1 h: does `backlogctl lookback run` "
            "run, and do the services answer?",
            "backlogctl lookback list --state prepared",
        ),
        (
            {"prepared": (1, 5.0), "forwarding": (4, 700.0)},
            "late",
            "4 messages that were committed wait to be sent, the oldest for 11 min: does "
            "`backlogctl lookback run` run, and does Kafka answer?",
            "backlogctl lookback list --state forwarding",
        ),
        (
            {"committed": (1, 700.0)},
            "late",
            "1 message waits for the prepared message, the oldest for 11 min: its decision has "
            "come, and it has not.",
            "backlogctl lookback list --state committed",
        ),
        (
            {"parked": (1, 90.0), "prepared": (2, 9_000.0)},
            "parked",
            "1 message is parked. Nobody asks about it, and nothing is sent, until somebody "
            "resumes. 2 others wait.",
            "backlogctl lookback list --state parked",
        ),
    ],
)
def test_look_back_says_how_it_stands(
    delivering: Night,
    ages: dict[str, tuple[int, float]],
    standing: str,
    sentence: str,
    command: str,
) -> None:
    row = tell(delivering, make_look_back(**ages))
    assert (row.standing, row.sentence) == (standing, sentence)
    assert row.commands == ((command,) if command else ())


def test_they_stand_worst_first_and_what_is_unknown_is_no_zero(tmp_path: Path) -> None:
    night = tell_night(tmp_path, lean=True)
    page = read(night, "/")
    section = page[page.index('<section id="delivery">') : page.index("</section>")]
    rows = re.findall(r'<td class="key">([\w-]+)<span', section)
    assert rows == ["billing", "stock", "crm", "shop", "look-back"]
    words = strip(section)
    assert "Unknown: the database cannot be reached: nothing listens at crm" in words
    assert "unknown unknown unknown" in words
    assert "backlogctl outbox list --outbox billing --state parked" in words
    assert "2 records of its topic did not fit" in words
    night.ledger.close()


def test_before_the_first_look_it_is_unknown_without_an_error(delivering: Night) -> None:
    delivering.deliveries = (DeliveryLook("shop"),)
    assert "Unknown: not looked at yet" in strip(read(delivering, "/"))
    assert "outbox status" not in read(delivering, "/")


def test_where_none_is_configured_there_is_no_section(quiet: Night) -> None:
    assert "Delivery" not in read(quiet, "/")


def test_what_a_database_says_is_escaped_and_masked(delivering: Night) -> None:
    problem = f"<script>alert(1)</script> \u202e {SECRET}"
    delivering.deliveries = (DeliveryLook("shop", None, problem, SEEN),)
    page = read(delivering, "/")
    assert "<script>alert" not in page
    assert "\u202e" not in page
    assert SECRET not in page
