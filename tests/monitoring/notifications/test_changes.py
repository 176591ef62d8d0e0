"""Which looks are told to a hook: changes, once, the better ones twice seen."""

from __future__ import annotations

import pytest

from backlogctl.errors import ClusterUnreachable
from backlogctl.monitoring.notifications.changes import Change, Damper, Mailbox, StreamObservation
from backlogctl.monitoring.verdict.status import Verdict
from tests.kafka_tools import StreamStub
from tests.monitoring.notifications.makers import NOW, see

OK, LAGGING, UNKNOWN, WARN = Verdict.OK, Verdict.LAGGING, Verdict.UNKNOWN, Verdict.WARN
STALL, STOP, LOSING, LOST = Verdict.STALL, Verdict.STOP, Verdict.LOSING, Verdict.LOST


class Hooked:
    """A mailbox whose messages are all delivered at once, unless it is `away`."""

    def __init__(self, least: Verdict = UNKNOWN, *, resolves_first: bool = False) -> None:
        self.replaced = 0
        self.now = 0.0
        self.is_away = False
        self.told: list[tuple[Verdict | None, Verdict, bool]] = []
        self.mailbox = Mailbox(
            least,
            resolves_first=resolves_first,
            on_replaced=self.count,
            clock=lambda: self.now,
        )

    def count(self) -> None:
        self.replaced += 1

    def put(self, *verdicts: Verdict, stream: str = "orders", beside: Verdict = OK) -> None:
        for verdict in verdicts:
            self.mailbox.put(see(verdict, stream, course=beside if verdict is LOST else verdict))
            if not self.is_away:
                self.send()

    def send(self) -> None:
        while (change := self.mailbox.take()) is not None:
            self.told.append((change.before, change.look.verdict, change.is_resolved))
            self.mailbox.note_delivered(change)


@pytest.mark.parametrize(
    ("looks", "counted"),
    [
        ([OK, STOP, LOSING], [OK, STOP, LOSING]),
        # It flaps between two looks: nobody is told again and again.
        ([STOP, OK, STOP, OK, STOP], [STOP, STOP, STOP]),
        ([STOP, OK, OK], [STOP, OK]),
        ([STOP, OK, WARN, OK], [STOP, WARN]),
        ([LOST, STOP, STOP, STOP], [LOST, STOP, STOP]),
    ],
)
def test_what_is_worse_counts_at_once_and_what_is_better_when_it_is_seen_twice(
    looks: list[Verdict], counted: list[Verdict]
) -> None:
    damper = Damper()
    assert [verdict for verdict in looks if damper.count(see(verdict))] == counted


def test_a_stream_that_cannot_be_seen_is_unknown_after_three_looks() -> None:
    damper = Damper()
    error = str(ClusterUnreachable("no broker answered", subject="cluster main"))
    failure = StreamObservation.of_failure(StreamStub("orders", "service"), error, NOW)
    assert (failure.verdict, failure.sentence) == (UNKNOWN, "cluster main: no broker answered")
    assert damper.count(see(OK))
    assert [damper.count(failure) for _ in range(3)] == [False, False, True]
    assert [damper.count(see(OK)) for _ in range(2)] == [False, True]
    assert [damper.count(failure) for _ in range(2)] == [False, False], "counted anew"


def test_only_changes_are_told_with_the_verdict_before() -> None:
    hook = Hooked()
    hook.put(OK, OK, STOP, STOP, LOSING, OK, OK)
    assert hook.told == [(OK, STOP, False), (STOP, LOSING, False), (LOSING, OK, True)]


def test_a_stream_that_is_bad_at_first_is_told_once_and_a_good_one_never() -> None:
    hook = Hooked()
    hook.put(LOST, LOST)
    hook.put(OK, OK, stream="bills")
    assert hook.told == [(None, LOST, False)]


def test_what_an_earlier_process_said_is_resolved_where_that_is_asked_for() -> None:
    hook = Hooked(resolves_first=True)
    hook.put(OK, OK)
    assert hook.told == [(None, OK, True)]


def test_below_the_least_verdict_it_is_resolved_and_silent() -> None:
    hook = Hooked(LOSING)
    hook.put(OK, STOP, WARN)
    assert hook.told == []
    hook.put(LOSING, LOST, STOP, WARN, OK)
    assert hook.told == [(WARN, LOSING, False), (LOSING, LOST, False), (LOST, STOP, True)]


@pytest.mark.parametrize("little", [LAGGING, UNKNOWN])
def test_where_too_little_is_known_nothing_is_resolved(little: Verdict) -> None:
    hook = Hooked(WARN)
    hook.put(STOP, little, STOP, little, OK)
    assert hook.told == [(None, STOP, False), (STOP, OK, True)]


def test_a_stop_beside_what_is_lost_already_is_news() -> None:
    hook = Hooked()
    hook.put(LOST)
    hook.put(LOST, LOST, beside=STOP)
    hook.put(LOST)
    assert len(hook.told) == 3
    deaf = Hooked(LOSING)
    deaf.put(LOST)
    deaf.put(LOST, beside=STOP)
    deaf.put(LOST, beside=LOSING)
    assert len(deaf.told) == 2


def test_of_what_waits_only_the_latest_is_sent() -> None:
    hook = Hooked()
    hook.put(OK)
    hook.is_away = True
    hook.put(STOP, LOSING)
    assert hook.replaced == 1
    hook.is_away = False
    hook.put(LOST)
    assert hook.told == [(OK, LOST, False)]
    hook.is_away = True
    hook.put(OK, LOST)
    hook.is_away = False
    hook.put(LOST)
    assert len(hook.told) == 1, "back where it was before anything was sent"
    assert hook.replaced == 3


def take(hook: Hooked) -> Change:
    change = hook.mailbox.take()
    assert change is not None
    return change


def test_what_was_not_taken_waits_and_others_have_their_turn() -> None:
    hook = Hooked()
    hook.put(OK)
    hook.is_away = True
    hook.put(STOP)
    hook.put(STOP, stream="bills")
    first = take(hook)
    hook.mailbox.note_failed(first)
    assert take(hook).look.stream == "bills"
    hook.mailbox.note_delivered(take(hook))
    again = take(hook)
    assert (again.look, again.before) == (first.look, OK)
    assert hook.mailbox.has_tried()
    hook.mailbox.note_failed(again, wait=300)
    assert hook.mailbox.take() is None
    hook.now = 301
    hook.mailbox.note_delivered(take(hook))
    assert not hook.mailbox.has_tried()
    assert hook.mailbox.take() is None


def test_a_recovery_is_told_though_the_trouble_was_perhaps_not_heard() -> None:
    hook = Hooked()
    hook.put(OK)
    hook.is_away = True
    hook.put(STOP)
    hook.mailbox.note_failed(take(hook))  # no answer: perhaps it heard it
    hook.is_away = False
    hook.put(OK)
    assert hook.told == [(STOP, OK, True)]


def test_what_changed_while_it_was_sent_is_sent_next() -> None:
    hook = Hooked()
    hook.put(OK)
    hook.is_away = True
    hook.put(STOP)
    sent = take(hook)
    hook.put(OK)  # nothing to say, as far as it is known
    assert hook.mailbox.take() is None
    hook.mailbox.note_delivered(sent)
    hook.send()
    assert hook.told == [(STOP, OK, True)]
