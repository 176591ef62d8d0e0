"""What a pass over all groups asks of a cluster; the benchmark answers it without one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from backlog.kafka.layouts import ClusterLayout, ListedGroup, Offsets
from monitoring.lag import EmptyReading, TopicOffset


class ClusterReader(Protocol):
    """Reads of one cluster, in bulk. Each raises ClusterUnreachable or KafkaFailure.

    An offset that is not known, or not committed, is `monitoring.groups.bulk.NONE`.
    """

    def may_list_all(self) -> bool | None: ...
    def list_groups(self) -> Sequence[ListedGroup]: ...
    def read_commits(self, groups: Sequence[str]) -> Mapping[str, Mapping[str, Offsets]]: ...
    def read_layout(self, topics: Iterable[str]) -> ClusterLayout: ...
    def read_log_starts(self, layout: ClusterLayout) -> Mapping[str, Offsets]: ...
    def read_ends(self, layout: ClusterLayout, *, stable: bool) -> Mapping[str, Offsets]: ...
    def find_offsets(
        self, layout: ClusterLayout, times: Mapping[tuple[str, int], int]
    ) -> Mapping[tuple[str, int], int]: ...
    def read_retentions(self, topics: Iterable[str]) -> Mapping[str, Mapping[str, str]]: ...
    def close(self) -> None: ...


class TailReader(Protocol):
    """Finds out from which offsets on partitions hold no committed data."""

    def __call__(self, places: Sequence[TopicOffset]) -> EmptyReading: ...
