"""Where a group can go on without a loss whose commit lies beyond the end of the log.

Three things look alike: the log was cut back (an unclean leader election does that), the topic was
made anew, or somebody set the offset wrong. The samples tell them apart. Where they do not, only
the log start loses nothing: to go on at the end would skip what was written since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backlogctl.values import PartitionSample, Sample


@dataclass(frozen=True, slots=True)
class Resumption:
    """One partition's place: an offset, None for the log start; `why` follows `partition N: `."""

    partition: int
    at: int | None
    why: str


def find_cut_epochs(samples: Sequence[Sample]) -> dict[int, int]:
    """By partition whose log was cut back the leader epoch of the group's commit: where that ends
    in the log of now is where the group had got to (KIP-320).

    Args:
        samples: of one topic and group, oldest first; the last is now.
    """
    return {
        part.partition: part.committed_epoch
        for part, earlier in _list_beyond(samples)
        if part.committed_epoch is not None and _was_cut(part, earlier)
    }


def find_resumptions(
    samples: Sequence[Sample], epoch_ends: Mapping[int, int]
) -> tuple[Resumption, ...]:
    """A place for each partition that is beyond the end; none where no partition is.
    `epoch_ends`: of `find_cut_epochs`, where the epoch ends; those not known are missing.
    """
    was_other = len({sample.topic_id for sample in samples}) > 1
    return tuple(
        _choose(part, earlier, epoch_ends.get(part.partition), was_other=was_other)
        for part, earlier in _list_beyond(samples)
    )


def _list_beyond(samples: Sequence[Sample]) -> list[tuple[PartitionSample, list[PartitionSample]]]:
    """Those beyond the end now, each with its past in this life of the topic."""
    *before, now = samples
    return [
        (
            part,
            [
                old
                for sample in before
                if sample.topic_id == now.topic_id
                for old in sample.partitions
                if old.partition == part.partition
            ],
        )
        for part in now.partitions
        if part.committed is not None and part.committed > part.high
    ]


def _was_cut(part: PartitionSample, earlier: Sequence[PartitionSample]) -> bool:
    return any(old.high > part.high for old in earlier)


def _choose(
    part: PartitionSample,
    earlier: Sequence[PartitionSample],
    epoch_end: int | None,
    *,
    was_other: bool,
) -> Resumption:
    number, ours = part.partition, [(old.committed, old.high) for old in earlier]
    inside = [at for at, high in ours if at is not None and at <= high]
    if _was_cut(part, earlier):
        at = None if epoch_end is None else min(epoch_end, part.committed or 0)
        if at is not None and part.low <= at <= part.high:
            return Resumption(
                number,
                at,
                f"the log was cut back, and what the group had read of it ends at {at:,}; what "
                "was written after the cut is unread",
            )
        return Resumption(
            number,
            None,
            "the log was cut back, and where is not known: only from the log start on nothing is "
            "skipped, and what was read before is handled again",
        )
    if inside and part.low <= inside[-1] <= part.high:
        return Resumption(
            number,
            inside[-1],
            f"the offset was set wrong: the group's last own commit was {inside[-1]:,}",
        )
    told = "the topic was made anew" if was_other and not inside else "no sample shows why"
    return Resumption(number, None, f"{told}: only from the log start on nothing is skipped")
