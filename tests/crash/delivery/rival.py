"""Somebody who takes MariaDB's locks in the other order: InnoDB ends the transactions he meets."""

from __future__ import annotations

import sqlalchemy as sa

from examples.delivery.facts import connect
from tests.kit.kafka import wait_until

# What is held, which a transaction needs last; what is wanted then, which it has by that time. A
# sender's mark is an entry at the end of an index; a handler's work a row at the end of a table.
OF_SENDERS = (
    "SELECT id FROM backlog_outbox FORCE INDEX (backlog_outbox_sent_at) "
    "WHERE sent_at > 4000000000000 FOR UPDATE",
    "SELECT id FROM backlog_outbox FOR UPDATE",
)
OF_HANDLERS = (
    "SELECT place FROM handled WHERE place > 1000000 FOR UPDATE",
    "SELECT message_id FROM handled_marks FOR UPDATE",
)
# Not the table of waits: InnoDB fills that anew only when nobody has read it for 0.1 s.
WAITS = sa.text(
    "SELECT variable_value FROM information_schema.global_status "
    "WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'"
)


def cross(url: str, held: str, wanted: str) -> None:
    """Once; InnoDB ends the one that has changed less, and that is never this one."""
    with connect(url) as rival, connect(url) as watch:
        watch.execute(sa.text("CREATE TABLE IF NOT EXISTS rival (n INT) ENGINE=InnoDB"))
        rival.execute(sa.text("INSERT INTO rival SELECT seq FROM seq_1_to_2000"))
        rival.execute(sa.text(held))
        wait_until(lambda: int(watch.execute(WAITS).scalar_one()) > 0, 120, "somebody waits for it")
        rival.execute(sa.text(wanted))
        rival.rollback()
