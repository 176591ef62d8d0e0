"""Whether a topic's holds are in force: what the broker says, not what was asked of it."""

from __future__ import annotations

from collections.abc import Mapping

from backlog.ledger import Ledger
from backlog.ledger.holds import keeps_longer
from backlog.values import Sample

_UNLIMITED = "-1"


def record_hold_state(ledger: Ledger, sample: Sample, config: Mapping[str, str]) -> None:
    """Puts on record which of the topic's holds are in force.

    Args:
        config: the topic's settings, as they are in force.

    Raises:
        LedgerError.
    """
    for hold in ledger.holds.list_of_topic(sample.cluster, sample.topic, sample.topic_id):
        undone = any(
            keeps_longer(value, config.get(name, _UNLIMITED)) for name, value in hold.raised.items()
        )
        if hold.in_force is not (not undone):
            ledger.holds.note_in_force(hold.id, not undone)
