"""How a backlog is spread: partitions, consumers, how long it takes, what the canary reads.

Pure calculation; nothing here asks Kafka. Rates are messages a second, times are seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from backlogctl.formats import format_duration, format_rate

CANARY_AT_LEAST = 500
CANARY_SECONDS = 10.0
CANARY_DIVISOR = 4  # at most a quarter of the backlog
MAX_FACTOR = 1000


@dataclass(frozen=True, slots=True)
class Load:
    """What is to be drained, and by whom.

    `lag` has every partition of the topic. `rate_per_consumer` is above zero. `largest_share`, 0 to
    1, is that of the messages which one consumer has to handle: those of one key.
    `relayed_per_second` is what a limit lets the relays copy; None: as fast as they can.
    """

    lag: Mapping[int, int]
    rate_per_consumer: float
    produced_per_second: float
    replicas: int
    max_consumers: int | None = None
    seconds_to_loss: float | None = None
    largest_share: float = 0.0
    relayed_per_second: float | None = None

    @property
    def unlimited(self) -> Load:
        """With relays that are as fast as they can."""
        return replace(self, relayed_per_second=None)

    @property
    def backlog(self) -> int:
        """Unread messages, all partitions together."""
        return sum(self.lag.values())

    @property
    def partitions(self) -> int:
        return len(self.lag)


@dataclass(frozen=True, slots=True)
class CanaryLayout:
    """What one consumer drains before the others start."""

    messages: int
    partitions: Mapping[int, int]  # source partition -> messages; those with none are left out


@dataclass(frozen=True, slots=True)
class Layout:
    """A spread backlog.

    Times are None where the consumers do not keep up with what is written. `wins` is None where
    no loss is expected; `smallest_factor` also where no factor is enough.
    """

    factor: int
    partitions: int
    consumers: int
    seconds_now: float | None
    seconds_expanded: float | None
    smallest_factor: int | None
    wins: bool | None
    canary: CanaryLayout


def plan_layout(load: Load, factor: int) -> Layout:
    """The layout of `factor` times the partitions and consumers."""
    expanded = measure_drain(load, count_consumers(load, factor))
    loss = load.seconds_to_loss
    return Layout(
        factor=factor,
        partitions=load.partitions * factor,
        consumers=count_consumers(load, factor),
        # More consumers than partitions are idle.
        seconds_now=measure_drain(load.unlimited, min(load.replicas, load.partitions)),
        seconds_expanded=expanded,
        smallest_factor=None if loss is None else find_smallest_factor(load),
        wins=None if loss is None else is_won(expanded, loss),
        canary=cut_canary(load.lag, load.rate_per_consumer),
    )


def count_consumers(load: Load, factor: int) -> int:
    """How many consumers run: never more than temporary partitions, nor than the cap."""
    wanted = min(load.replicas, load.partitions) * factor
    return wanted if load.max_consumers is None else min(wanted, load.max_consumers)


def measure_drain(load: Load, consumers: int) -> float | None:
    """Seconds until so many consumers have read all; None where they never have.

    The one with the largest share is the last: more consumers do not help it. Nor do they where a
    limit holds the relays.
    """
    if not load.backlog:
        return 0.0
    share = max(1 / consumers, load.largest_share)
    net = load.rate_per_consumer - share * load.produced_per_second
    relayed = math.inf if load.relayed_per_second is None else load.relayed_per_second
    copied = relayed - load.produced_per_second
    if net <= 0 or copied <= 0:
        return None
    return max(share * load.backlog / net, load.backlog / copied)


def is_won(seconds_to_drain: float | None, seconds_to_loss: float) -> bool:
    """Whether the backlog is read before retention reaches it."""
    return seconds_to_drain is not None and seconds_to_drain < seconds_to_loss


def find_smallest_factor(load: Load) -> int | None:
    """The smallest factor that drains before retention deletes; None where none does."""
    if load.seconds_to_loss is None:
        return None
    for factor in range(1, MAX_FACTOR + 1):
        if is_won(measure_drain(load, count_consumers(load, factor)), load.seconds_to_loss):
            return factor
    return None


def cut_canary(lag: Mapping[int, int], rate_per_consumer: float) -> CanaryLayout:
    """What one consumer reads in 10 s: at most a quarter of the backlog, at least 500 messages.

    Of a smaller backlog it is all. It takes that long to see the speed of a consumer that commits
    every 5 s. Split over the partitions in proportion to their lag, to the message.
    """
    backlog = sum(lag.values())
    wanted = min(math.ceil(CANARY_SECONDS * rate_per_consumer), backlog // CANARY_DIVISOR)
    messages = min(backlog, max(CANARY_AT_LEAST, wanted))
    if not messages:
        return CanaryLayout(0, {})
    shares = {partition: divmod(messages * behind, backlog) for partition, behind in lag.items()}
    split = {partition: whole for partition, (whole, _) in shares.items()}
    by_rest = sorted(shares, key=lambda partition: (-shares[partition][1], partition))
    for partition in by_rest[: messages - sum(split.values())]:
        split[partition] += 1
    return CanaryLayout(messages, {p: count for p, count in sorted(split.items()) if count})


def warn_about_quota(load: Load, layout: Layout, bytes_per_second: float | None) -> list[str]:
    """Whether the relays' share of their quota is what makes the drain take as long as it does."""
    if bytes_per_second is None:
        return []
    if load.relayed_per_second is None:
        return [
            "how large the messages are is not known, so neither is how long the relays take that "
            "keep to `limits.quota_share`: drain times are without that"
        ]
    free = measure_drain(load.unlimited, layout.consumers)
    now, rate = layout.seconds_expanded, format_rate(load.relayed_per_second)
    if now == free:
        return []
    takes = "it is never drained" if now is None else f"the drain takes {format_duration(now)}"
    instead = "" if free is None else f"; without that {format_duration(free)}"
    return [f"`limits.quota_share` lets the relays copy {rate}, so {takes}{instead}"]
