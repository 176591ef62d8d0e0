"""What `watch` exports of outboxes and look-back: the names that their own processes have too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from replay.console.deliveries.looks import DeliveryLook, LookBackStatus

if TYPE_CHECKING:
    from prometheus_client.core import Metric


def collect_deliveries(read: Callable[[], Sequence[DeliveryLook]]) -> Iterator[Metric]:
    """Families of what is configured; what was not looked at yet is absent, and not away."""
    looks = [one for one in read() if one.status is not None or one.problem]
    outboxes = [one for one in looks if one.outbox]
    if outboxes:
        from backlogctl_delivery.outbox.admin import OutboxStatus
        from backlogctl_delivery.outbox.metrics import collect_outboxes

        yield from collect_outboxes(
            {
                one.outbox: one.status if isinstance(one.status, OutboxStatus) else None
                for one in outboxes
            }
        )
    for one in looks:
        if not one.outbox:
            from backlogctl_delivery.lookback.metrics import collect_look_back

            status = one.status
            counts = status.counts if isinstance(status, LookBackStatus) else None
            yield from collect_look_back(counts)
