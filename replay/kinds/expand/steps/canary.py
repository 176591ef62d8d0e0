"""Step 5: one consumer drains a small share; its speed is held against the plan."""

from __future__ import annotations

import time

from backlog.step import Step
from backlogctl_delivery.crashpoints import reach
from fanout.relay.interface import SourceRange
from replay.kinds.expand.canary_look import CanaryFailed, CanaryLook, find_first
from replay.kinds.expand.context import LAGS_SECONDS, ExpandContext
from replay.kinds.expand.steps.trial import Speed, Trial
from replay.recovery.brakes import CANARY, PausedBecause

NOTHING_SECONDS = 60.0
SLOW_SHARE = 0.5
_POLL_SECONDS = 0.1
_STILL_SECONDS = 1.0
_STILL_FEW_SECONDS = 0.2
_MARKERS = 2  # a partition's, of the few transactions that bring the share
_ENOUGH = 100


class Canary(Step[ExpandContext]):
    """Relays the share, starts one consumer on it, and measures."""

    name = "canary"

    def start(self, context: ExpandContext) -> None:
        """Relays and measures.

        Raises:
            CanaryFailed: nothing was handled, or the consumer ended or reads something else.
            PausedBecause: it is slower than half of what the plan counts on; `resume` accepts it.
        """
        context.join()
        context.note_counters()
        look = CanaryLook(find_first(context))
        with look.judging():
            measured = _relay_share(context, look)
        if measured is None:
            return
        context.details[self.name] = measured.to_json()
        # Few messages, and no more to read: an earlier run's consumer has had the others.
        if measured.handled >= _ENOUGH or context.find_unread():
            _hold_against_plan(context, measured)


def _relay_share(context: ExpandContext, look: CanaryLook) -> Speed | None:
    """Relays the share to one consumer, and measures it; None where there was nothing for it."""
    context.launch(1)  # it waits since the others were stopped; after a crash it starts now
    joins = find_first(context).has_joined
    has_joined, handled = context.ask(joins), context.read_handled()
    begun = time.monotonic()
    context.session.start(lambda: _cut_ranges(context))
    while not context.session.is_done:
        context.tick()
        time.sleep(0.02)
    context.session.stop_relays()
    reach("p4.7.canary.relayed")
    context.session.make_ready(context.partitions)  # while there is time: the drain's relays
    context.await_decided()
    reach("p4.7.canary.started")
    # The lag first: the consumer reads meanwhile.
    share = context.ask(context.read_lags).temporary_total + context.read_handled() - handled
    if share <= 0 or not (context.read_handled() - handled or context.find_unread()):
        return None  # control records alone are none
    return _measure(context, Trial(share, begun), look, joined=has_joined)


def _cut_ranges(context: ExpandContext) -> list[SourceRange]:
    """The share of each partition, from where its group is now."""
    lags = context.ask(context.read_lags).source
    share = context.plan.canary.partitions
    ranges: list[SourceRange] = []
    for part in context.make_ranges():
        begin = context.find_commit(part.partition)
        start = max(part.start, begin)
        # The lag counts from the commit; what retention removed of it never comes.
        left = begin + lags[part.partition] - start
        count = min(share.get(part.partition, 0), left)
        if count > 0:
            ranges.append(SourceRange(part.partition, part.start, start + count))
    return ranges


def _measure(context: ExpandContext, trial: Trial, look: CanaryLook, *, joined: bool) -> Speed:
    """Watches the consumer until its speed is known.

    Args:
        trial: of its share, from when the first of it was relayed. joined: it was there by then.
    """
    planned = context.plan.rate_per_consumer
    begun = asked_at = trial.joined
    has_joined, away = find_first(context).has_joined, context.brokers.away
    while True:
        context.tick()
        if not joined and not trial.commits and context.ask(has_joined):
            trial, joined = Trial(trial.share, time.monotonic()), True
        left = context.ask(lambda: context.read_lags(LAGS_SECONDS)).temporary_total
        now = time.monotonic()
        if context.brokers.away != away:  # it could do nothing meanwhile
            away, begun, trial = context.brokers.away, now, Trial(left, now)
        trial = trial.note(now, left)
        if not trial.commits:
            look.look()
        if left == 0:
            return trial.measure(now, drained=True)
        if trial.is_enough(now, planned):
            return trial.measure(now, drained=False)
        # Control and aborted records stay in the lag; none but they may be left.
        few = left <= _MARKERS * context.partitions
        still = _STILL_FEW_SECONDS if few else _STILL_SECONDS
        if now - max(trial.last_at, asked_at) >= still:
            asked_at = now
            if not context.find_unread():
                return trial.measure(now, drained=True)
        if not trial.commits and now - begun > NOTHING_SECONDS:
            raise _say_nothing(context)
        time.sleep(_POLL_SECONDS)


def _hold_against_plan(context: ExpandContext, speed: Speed) -> None:
    planned = context.plan.rate_per_consumer
    if speed.rate >= SLOW_SHARE * planned:
        return
    if not speed.known:
        context.say(
            f"the first consumer handled its share with one commit or two, at {speed.rate:.0f} "
            f"messages/s or more; the plan counts on {planned:.0f}"
        )
        return
    told = (
        f"one consumer handled {speed.rate:.0f} messages/s on the temporary topic, and the plan "
        f"counts on {planned:.0f}"
    )
    if context.resumed:
        context.say(f"{told}; going on, as said by `resume`")
        return
    raise PausedBecause(
        CANARY,
        told,
        subject=f"recovery {context.recovery.id}",
        hint=f"`backlogctl resume {context.recovery.id}` goes on all the same; "
        f"`backlogctl cancel {context.recovery.id}` restores the layout",
    )


def _say_nothing(context: ExpandContext) -> CanaryFailed:
    return CanaryFailed(
        f"the first consumer committed nothing within {NOTHING_SECONDS:.0f} s",
        subject=f"group {context.recovery_group} on topic {context.temporary_topic}",
        hint=f"it must read the topic and group of BACKLOG_TOPIC and BACKLOG_GROUP; its log is in "
        f"{context.fleet.directory}. Mend it and run again; nothing is lost",
    )
