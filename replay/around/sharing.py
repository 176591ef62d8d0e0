"""How far a share group is, for `status`: by its own figures, since it has no committed offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backlog.clock import Deadline
from backlog.errors import BacklogError
from backlog.kafka.share_groups import SharePartition, read_share_offsets
from backlog.numbers import format_count

_SECONDS = 15.0


def describe_share_group(
    properties: Mapping[str, Any], name: str, topic: str, group: str
) -> dict[str, Any]:
    """What takes the place of committed offsets in the entry of `status`.

    `share` has the start offset of each partition and how many messages are not acknowledged yet,
    at most; null where the brokers do not tell. Where they cannot be asked, `warnings` says why.
    """
    try:
        found = read_share_offsets(properties, group, Deadline(_SECONDS))
    except BacklogError as error:
        return {"warnings": [f"how far the share group is is unknown: {error}"]}
    parts = [one for one in found if one.topic == topic]
    lag = _add(parts)
    return {
        "share": {
            "partitions": [
                {"partition": one.partition, "start": one.start, "lag": one.lag} for one in parts
            ],
            "lag": lag,
        },
        "sentence": _say(name, parts, lag),
        "warnings": [],
    }


def _add(parts: Sequence[SharePartition]) -> int | None:
    lags = [one.lag for one in parts]
    return sum(lag for lag in lags if lag is not None) if lags and None not in lags else None


def _say(name: str, parts: Sequence[SharePartition], lag: int | None) -> str:
    if not parts:
        return f"{name}: a share group that has begun to read no partition of it yet"
    if lag is None:
        return (
            f"{name}: a share group; how many messages are not acknowledged yet is unknown: its "
            "brokers do not tell"
        )
    if not lag:
        return f"{name}: a share group; every message is acknowledged"
    many = f"at most {format_count(lag)} messages are" if lag > 1 else "at most 1 message is"
    return f"{name}: a share group; {many} not acknowledged yet"
