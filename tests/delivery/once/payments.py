"""A table of payments, each the work of one message."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from confluent_kafka import Message
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from backlogctl_delivery.idempotent.sql import Marks


class Base(DeclarativeBase):
    pass


class Payment(Base):
    __tablename__ = "payments"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    order: Mapped[str] = mapped_column(sa.String(40))
    amount: Mapped[int] = mapped_column(sa.CheckConstraint("amount > 0"))


class WorkFailed(Exception):
    pass


def make_message(*headers: tuple[str, bytes | None]) -> Message:
    return Message(topic="orders", partition=2, offset=17, value=b"v", headers=list(headers))


def pay(marks: Marks, session: Session, message: Any, amount: int = 1) -> bool:
    with marks.handle_once(session, message) as attempt:
        if attempt.is_first:
            session.add(Payment(order=attempt.message_id, amount=amount))
            return True
    return False


def list_orders(engine: sa.Engine) -> list[str]:
    with engine.connect() as connection:
        return sorted(connection.execute(sa.select(Payment.order)).scalars())


def list_marks(engine: sa.Engine, marks: Marks) -> list[str]:
    with engine.connect() as connection:
        return sorted(connection.execute(sa.select(marks.table.c.message_id)).scalars())
