"""What events make of a message, over all orders in which they can come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from backlogctl_delivery.lookback.messages import (
    ENDED,
    Decision,
    Event,
    Standing,
    State,
    decide_step,
    settle,
)


@given(st.lists(st.sampled_from([*Event, "asked committed", "asked rolled back", "park", "send"])))
def test_fault_51_a_decision_never_changes_and_an_end_is_an_end(happenings: list[str]) -> None:
    standing: Standing | None = None
    sent = False
    for one in happenings:
        before = standing
        if one == "send":
            if standing is not None and standing.state is State.FORWARDED:
                standing = Standing(State.FORWARDED, standing.decision, True)
                sent = True
            continue
        if one == "park":
            if standing is not None and standing.state in (State.PREPARED, State.COMMITTED):
                standing = Standing(State.PARKED, standing.decision, standing.has_message)
            continue
        if one.startswith("asked"):
            if standing is None or standing.state is not State.PREPARED:
                continue
            step = settle(Decision.COMMITTED if one == "asked committed" else Decision.ROLLED_BACK)
        else:
            step = decide_step(standing, Event(one))
        assert step.incident is None or step.state is None
        if step.state is not None:
            had = standing is not None and standing.has_message
            decision = step.decision or (standing.decision if standing else None)
            standing = Standing(step.state, decision, had or step.takes_message)
        if before is not None and standing is not None:
            assert before.decision in (None, standing.decision)
            assert before.state not in ENDED or before.state is standing.state
    assert not sent or (standing is not None and standing.decision is Decision.COMMITTED)


def test_every_message_that_is_sent_is_there() -> None:
    early = decide_step(None, Event.COMMITTED)
    assert early.state is State.COMMITTED
    joined = decide_step(Standing(State.COMMITTED, Decision.COMMITTED, False), Event.PREPARED)
    assert joined.state is State.FORWARDED
    assert joined.takes_message
