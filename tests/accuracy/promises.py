"""What is promised of a plan with the best evidence, as docs/accuracy.md says it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tests.accuracy.planning import REFUSED, Measured, Method
from tests.accuracy.watching import Sampling

# With bookmarks of a `watch` that always ran: at most this share of the lost messages is missed, and
# at most as many are doubled.
SHARES: Mapping[str, float] = {
    "tight": 0.0,
    "one": 0.0,
    "loose": 0.0005,
    "long": 0.0005,
    "control": 0.0001,
}
# One row at an edge is more than any share of a small loss.
SMALL = 10_000
FEW = 2


def find_broken(results: Iterable[Measured]) -> list[str]:
    """What does not hold, a sentence each."""
    broken = []
    for item in results:
        found = item.judgement
        place = f"{item.scenario}, sampled {item.sampling}, {item.method}"
        if not item.is_honest:
            broken.append(f"{place}: says exact, and is not: {found}")
        if item.verdict == REFUSED:
            broken.append(f"{place}: refused: {'; '.join(item.reasons)}")
        if found.altered:
            broken.append(f"{place}: {found.altered} messages are not what was sent")
        share = SHARES.get(item.scenario)
        if share is None or item.method is not Method.BOOKMARKS:
            continue
        if item.sampling is Sampling.ALWAYS:
            most = int(found.lost * share)
            if share and found.lost < SMALL:
                most = max(most, FEW)
            for name, count in (("missed", found.missed), ("doubled", found.doubled)):
                if count > most:
                    broken.append(f"{place}: {count} {name}, of {found.lost} at most {most}")
    return broken
