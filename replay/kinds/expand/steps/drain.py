"""Step 6: everything is relayed, and all consumers work (protocol P4.5 to 7)."""

from __future__ import annotations

import time

from backlog.kafka.errors import TopicMissing
from backlog.step import Step
from backlogctl_delivery.crashpoints import reach
from fanout.launchers.ramp import ramp_up
from replay.kinds.expand.context import LAGS_SECONDS, ExpandContext
from replay.kinds.expand.stall import StallWatch, count_wanted

CUT_OVER_SECONDS = 2.0
READ_EACH_SECONDS = 2.0
_POLL_SECONDS = 0.1


class Drain(Step[ExpandContext]):
    """Relays until little is left in both topics, with all consumers at work."""

    name = "drain"

    def start(self, context: ExpandContext) -> None:
        """Goes on where the group's commits say.

        Raises:
            ConsumerCameBack: somebody is in the group; the relay has stopped.
        """
        context.join()  # 5. the guard
        reach("p4.5.guard.joined")
        context.note_counters()
        context.session.start(context.make_ranges)  # 6. the relays
        reach("p4.6.relays.started")
        context.launch(max(1, context.launcher.count_running(context.fleet) or 0))
        ramp_up(  # 7. the consumers
            context.launcher,
            context.fleet,
            count_wanted(context),
            context.consumers.ramp,
            context.tick,
            lambda _: None,
            max_consumers=context.consumers.max_consumers,
        )
        reach("p4.7.consumers.started")
        stall, rest = StallWatch(context), _Rest(context)
        while not rest.is_little():
            context.tick()
            stall.look()
            time.sleep(_POLL_SECONDS)

    def complete(self, context: ExpandContext) -> None:
        """The source is still the planned one; the relays go on until the cut over."""
        context.check_topic()


class _Rest:
    """What is left in both topics.

    From the cut over on nobody reads the source until the temporary topic is read to its end, so
    that must not take long: what is left there is at most what the consumers read in 2 s.
    """

    def __init__(self, context: ExpandContext) -> None:
        plan = context.plan
        self._context = context
        self._threshold = plan.max_lag_at_cutover
        at_once = plan.consumers * plan.rate_per_consumer * CUT_OVER_SECONDS
        self._temporary = float(max(self._threshold, at_once))
        self._read_at = time.monotonic() + READ_EACH_SECONDS

    def is_little(self) -> bool:
        """Whether it is time to cut over."""
        try:
            lags = self._context.ask(lambda: self._context.read_lags(LAGS_SECONDS))
        except TopicMissing:
            return False  # the next look at the topics says which
        if lags.source_total > self._threshold:
            return False
        if lags.temporary_total <= self._temporary:
            return True
        # Aborted records of an earlier relay stay in the lag: only a read shows what is unread.
        if time.monotonic() < self._read_at:
            return False
        unread = self._context.find_unread() | self._context.find_undecided()
        self._read_at = time.monotonic() + READ_EACH_SECONDS
        return sum(lags.temporary[number] for number in unread) <= self._temporary
