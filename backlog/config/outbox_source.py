"""`source: {outbox: NAME}`: an outbox as the source of a rebuild, written out as any other source.

Nothing else knows that it is one.
"""

from __future__ import annotations

from collections.abc import Mapping

from backlog.config.base import fail_at
from backlogctl_delivery.stamps import EVENT_ID

OUTBOX = "outbox"
# What the user may say beside it.
_BESIDE = (OUTBOX, "consumed", "edge", "margin")


def expand_outbox(topic: object, given: Mapping[str, object]) -> dict[str, object]:
    """The section that `given` stands for.

    A row's time is `sent_at`: when Kafka acknowledged it, however late that was marked, and
    indexed. `created_at` may lie days before the message, where it was parked or Kafka was away.
    Rows that are not sent are not lost: their sender sends them.

    Rows of a partition stand in the order of their offsets, which Kafka told the sender; of a row
    without one nothing is known but its time.

    Raises:
        PydanticCustomError: `outbox` names nothing, or a key stands beside it that follows from it.
    """
    database = given[OUTBOX]
    if not isinstance(database, str):
        raise fail_at(("source", OUTBOX), "must be a name under `sources`")
    for key in given:
        if key not in _BESIDE:
            raise fail_at(("source", key), f"follows from `{OUTBOX}`: leave one of the two out")
    return {
        "database": database,
        "table": "backlog_outbox",
        "primary_key": ["id"],
        # A topic that is none is refused as that.
        "where": {"topic": topic if isinstance(topic, str) else "", "state": "sent"},
        "time_column": "sent_at",
        "time_unit": "ms",
        "sent_time": True,
        "order_by": ["sent_offset", "id"],
        "mutable": False,
        "message": {
            "key": "message_key",
            "partition": "sent_partition",
            "value": {"column": "value"},
            "tombstones": True,
            "header_list": "headers",
            "headers": {EVENT_ID: "message_id"},
        },
        "identity": {"row": "message_id", "message": f"header:{EVENT_ID}"},
        "stale": "events",
        **given,
    }
