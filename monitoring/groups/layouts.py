"""Groups, topics and offsets of a whole cluster, in arrays: they are hundreds of thousands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Offsets = NDArray[np.int64]
Numbers = NDArray[np.int32]
NONE = -1  # no offset: not committed, or not known


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group as its coordinator lists it; `state` is in lower case, "" where unknown."""

    name: str
    state: str


@dataclass(frozen=True, slots=True)
class TopicLayout:
    """A topic's partitions: the place in each array is the partition; -1 where it has no leader."""

    topic_id: str
    leaders: Numbers
    replicas: Numbers
    in_sync: Numbers


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """Brokers, and the topics that were asked for and are there."""

    brokers: int
    topics: Mapping[str, TopicLayout]
