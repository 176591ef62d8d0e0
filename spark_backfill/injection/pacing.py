"""The rate of an injection: which slots a wave takes, and how fast each chunk is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from backlog.values import Chunk

# An open transaction holds back every read_committed reader: a slow pace ends here.
MAX_TRANSACTION_SECONDS = 4.0
# How long a wave goes on beginning chunks where there is no rate.
WAVE_SECONDS = 5.0
# Of one slot in one wave; its task stops earlier when its time is over.
MAX_CHUNKS = 20


def choose_slots(left: Mapping[int, Sequence[Chunk]], rate: float | None) -> list[int]:
    """Slots of the next wave: of those with chunks left all, or with a rate as many as fit.

    A wave lasts no longer than one transaction may, however many of its chunks are written at
    once: together they hold what the rate allows in that time, but always one chunk.

    Args:
        left: the chunks that are left of each slot, the next one first.
        rate: messages per second over all slots.
    """
    pending = [slot for slot, chunks in left.items() if chunks]
    if rate is None:
        return pending
    budget, chosen = rate * MAX_TRANSACTION_SECONDS, list[int]()
    # The slots with the most left go first, so that none of them is late at the end.
    for slot in sorted(pending, key=lambda s: -len(left[s])):
        budget -= left[slot][0].count
        if chosen and budget < 0:
            break
        chosen.append(slot)
    return chosen


def choose_chunks(left: Sequence[Chunk], rate: float | None, most: int) -> tuple[Chunk, ...]:
    """The next chunks of a slot in a wave: one with a rate or of the canary, else some seconds'
    worth, since a task that goes on with its producer does not have to take the slot over again.

    Args:
        left: the chunks that are left of the slot, at least one.
        rate: messages per second over all slots.
        most: so many at most.
    """
    if rate is not None or left[0].canary:
        return (left[0],)
    return tuple(islice(left, most))


def choose_pace(count: int, rate: float | None, width: int, parallelism: int) -> float | None:
    """Messages per second of one chunk of a wave; None for as fast as it goes.

    Evenly inside the wave, but never so slowly that the transaction stays open for long; what is
    missing to the rate then is waited for between the waves.

    Args:
        count: messages of the chunk.
        width: chunks of the wave.
        parallelism: how many of them are written at once; the others wait, and use no rate.
    """
    if rate is None:
        return None
    return max(rate / max(1, min(width, parallelism)), count / MAX_TRANSACTION_SECONDS)
