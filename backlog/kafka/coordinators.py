"""Which broker coordinates which group, remembered until the broker says that it no longer does.

kafka-python 3.0 remembers that too, but never forgets it, and fails for all groups where one of
them may not be asked for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from backlog.kafka.raw_client import RawClient


class Coordinators:
    """The coordinators of one client's groups."""

    def __init__(self, client: RawClient) -> None:
        self._manager = client.admin._manager
        self._send = client.send
        self._nodes: dict[str, int] = {}

    async def find(self, groups: Sequence[str]) -> tuple[Mapping[int, list[str]], int]:
        """By broker its groups, and the last error code; groups with an error are left out."""
        unknown, code = [name for name in groups if name not in self._nodes], 0
        if unknown:
            code = await self._ask(unknown)
        found: defaultdict[int, list[str]] = defaultdict(list)
        for name in groups:
            if name in self._nodes:
                found[self._nodes[name]].append(name)
        return found, code

    def forget(self, groups: Iterable[str]) -> None:
        """They have moved."""
        for name in groups:
            self._nodes.pop(name, None)

    async def _ask(self, groups: Sequence[str]) -> int:
        from kafka.protocol.metadata.find_coordinator import CoordinatorType, FindCoordinatorRequest

        kind = CoordinatorType.GROUP
        if self._manager.broker_version_data.api_version(FindCoordinatorRequest) >= 4:
            request = FindCoordinatorRequest(
                key_type=kind.value, coordinator_keys=list(groups), min_version=4
            )
            rows = [(row.key, row) for row in (await self._send(request)).coordinators]
        else:
            rows = []
            for name in groups:
                request = FindCoordinatorRequest(key=name, key_type=kind.value, max_version=3)
                rows.append((name, await self._send(request)))
        last = 0
        for name, row in rows:
            if row.error_code:
                last = row.error_code
                continue
            # Its address too: the metadata may not name this broker yet.
            self._manager.cluster.add_coordinator(row, kind, name, synthesize_node_id=False)
            self._nodes[name] = row.node_id
        return last
