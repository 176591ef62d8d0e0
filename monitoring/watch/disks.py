"""When the brokers' disks are full at the present rate: pure calculation over readings."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from backlogctl.clock import utc_now
from backlogctl.formats import format_bytes
from backlogctl.kafka.log_dirs import LogDirs
from backlogctl.ledger.measurements import DiskReading

# The present rate is that of these last minutes; readings closer together tell less than noise.
WINDOW = timedelta(minutes=15)
SHORTEST = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class Forecast:
    """When the first broker's disks are full.

    Attributes:
        seconds: from now; None where no disk is filling up, or that is unknown: `why` says it.
        broker: which one; None where there is none.
        is_known: whether every broker could be judged.
    """

    seconds: float | None
    broker: int | None
    why: str
    is_known: bool = True


def forecast_full(readings: Iterable[DiskReading], now: datetime, silent: str = "") -> Forecast:
    """Judges each broker by the oldest and the newest reading of the last minutes.

    A disk of which nobody knows how fast it fills makes the whole unknown, unless another one is
    known to be full soon: that is told in any case.

    Args:
        silent: why the disks of some broker could not be read now; "" where all were.
    """
    by_broker: defaultdict[int, list[DiskReading]] = defaultdict(list)
    for reading in readings:
        by_broker[reading.broker].append(reading)
    if not by_broker:
        return Forecast(None, None, "the disks were never read", is_known=False)
    full: dict[int, float] = {}
    unknown: dict[int, str] = {}
    for broker, own in sorted(by_broker.items()):
        found = _judge(own, now)
        if isinstance(found, str):
            unknown[broker] = found
        elif found is not None:
            full[broker] = found
    whys = [f"broker {broker}: {told}" for broker, told in unknown.items()]
    why = "; ".join([*whys, silent] if silent else whys)
    if full:
        first = min(full, key=lambda broker: full[broker])
        return Forecast(full[first], first, why, is_known=not why)
    if why:
        return Forecast(None, None, why, is_known=False)
    return Forecast(None, None, "no disk is filling up")


def _judge(readings: Sequence[DiskReading], now: datetime) -> float | str | None:
    """Seconds until it is full; None where it does not fill; a text where that is unknown."""
    ordered = sorted(readings, key=lambda reading: reading.at)
    newest = ordered[-1]
    if newest.usable_bytes is None:
        return "does not report its free space (Kafka before 3.3)"
    if now - newest.at > WINDOW:
        return f"was not read for {(now - newest.at).total_seconds() / 60:.0f} min"
    rate = _measure_rate(ordered)
    if newest.usable_bytes <= 0:
        return 0.0
    if rate is None:
        return "how fast it fills is not known yet: it was read once"
    if rate <= 0:
        return None
    passed = (now - newest.at).total_seconds()
    return max(0.0, newest.usable_bytes / rate - passed)


def _measure_rate(ordered: Sequence[DiskReading]) -> float | None:
    """Bytes a second that a broker's disks fill by, negative where they empty; None: not known."""
    newest = ordered[-1]
    recent = [r for r in ordered if newest.at - r.at <= WINDOW and r.usable_bytes is not None]
    if not recent or newest.usable_bytes is None or recent[0].usable_bytes is None:
        return None
    seconds = (newest.at - recent[0].at).total_seconds()
    if seconds < SHORTEST.total_seconds():
        return None
    return (recent[0].usable_bytes - newest.usable_bytes) / seconds


def estimate_growth(
    readings: Iterable[DiskReading], broker: int, seconds: float | None
) -> tuple[int | None, str]:
    """Bytes that a broker's disks fill by meanwhile, at the rate of the last minutes, and that in
    words; None where the rate, or for how long, is unknown.

    Args:
        readings: of the last minutes.
    """
    own = sorted((r for r in readings if r.broker == broker), key=lambda reading: reading.at)
    rate = _measure_rate(own) if own else None
    if rate is None:
        return None, (
            "how much others write there meanwhile is unknown: the disks were not read over the "
            "last minutes (`backlogctl watch` does)"
        )
    if rate <= 0:
        return 0, "it does not fill by itself"
    if seconds is None:
        return None, f"it fills by {format_bytes(round(rate))} a second besides"
    grown = math.ceil(rate * seconds)
    return grown, f"it fills by about {format_bytes(grown)} meanwhile besides"


def make_readings(
    cluster: str, log_dirs: LogDirs, topic: str | None, at: datetime | None = None
) -> tuple[DiskReading, ...]:
    """What the ledger keeps of an answer; nothing where there was none."""
    moment = at or utc_now()
    return tuple(
        DiskReading(
            cluster,
            moment,
            broker.broker,
            broker.usable_bytes,
            broker.total_bytes,
            topic,
            None if topic is None else sum(broker.partitions.values()),
        )
        for broker in log_dirs.brokers or ()
    )


def list_space(
    readings: Iterable[DiskReading], topic: str
) -> dict[str, list[tuple[datetime, int]]]:
    """By a name for people: what is used of each broker's disks over time, and what the topic takes
    there; as far as brokers told it."""
    found: defaultdict[str, list[tuple[datetime, int]]] = defaultdict(list)
    for one in sorted(readings, key=lambda each: (each.broker, each.at)):
        if one.usable_bytes is not None and one.total_bytes is not None:
            used = one.total_bytes - one.usable_bytes
            found[f"disks of broker {one.broker}"].append((one.at, used))
        if one.topic == topic and one.topic_bytes is not None:
            found[f"{topic} on broker {one.broker}"].append((one.at, one.topic_bytes))
    return dict(found)
