"""What one event makes of a message: pure, and the only place that says so.

A decision never changes, and nothing but a resume leads out of `parked`. An event that comes again
changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from delivery.lookback.states import Decision, Event, Incident, State


@dataclass(frozen=True, slots=True)
class Standing:
    """How a message stands, as far as that decides anything."""

    state: State
    decision: Decision | None
    has_message: bool  # False: a decision overtook the prepared message


@dataclass(frozen=True, slots=True)
class Step:
    """What an event leads to; nothing where all is None.

    `takes_message`: the prepared message is stored.
    """

    state: State | None = None
    decision: Decision | None = None
    takes_message: bool = False
    incident: Incident | None = None


_NOTHING = Step()


def decide_step(standing: Standing | None, event: Event, is_same: bool = True) -> Step:
    """What an event leads to.

    Args:
        standing: None where nothing is known of the message.
        is_same: whether a message prepared again is the one that is stored.
    """
    if event is Event.PREPARED:
        return _prepare(standing, is_same)
    decision = Decision(event)
    if standing is None:
        # It overtook its prepare, or that one is lost: kept until it comes.
        kept = State.COMMITTED if decision is Decision.COMMITTED else State.ROLLED_BACK
        return Step(kept, decision)
    if standing.decision is not None:
        return _NOTHING if standing.decision is decision else Step(incident=_conflict(decision))
    if standing.state is State.PARKED:
        late = Incident.COMMIT_AFTER_PARKING
        if decision is Decision.ROLLED_BACK:
            late = Incident.ROLL_BACK_AFTER_PARKING
        return Step(incident=late)
    return settle(decision)


def settle(decision: Decision) -> Step:
    """What a decision makes of a message that waited for it."""
    ended = State.FORWARDING if decision is Decision.COMMITTED else State.ROLLED_BACK
    return Step(ended, decision)


def _prepare(standing: Standing | None, is_same: bool) -> Step:
    if standing is None:
        return Step(State.PREPARED, takes_message=True)
    if standing.has_message:
        return _NOTHING if is_same else Step(incident=Incident.OTHER_MESSAGE)
    if standing.decision is Decision.COMMITTED:
        # Parked or not: all that is needed to send it is here now.
        return Step(State.FORWARDING, Decision.COMMITTED, takes_message=True)
    return _NOTHING


def _conflict(late: Decision) -> Incident:
    if late is Decision.COMMITTED:
        return Incident.COMMIT_AFTER_ROLL_BACK
    return Incident.ROLL_BACK_AFTER_COMMIT
