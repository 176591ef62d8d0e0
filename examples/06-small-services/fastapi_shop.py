"""A shop on FastAPI: an order and its message commit together, and a message is handled once."""

import os
from typing import Any

from fastapi import FastAPI
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from backlogctl_delivery.idempotent.sql import Marks
from backlogctl_delivery.outbox import Outbox

engine = create_engine("sqlite:///shop.db")
outbox = Outbox(engine, kafka={"bootstrap.servers": os.environ["SHOP_KAFKA"]})
marks = Marks("payments_handled")
app = FastAPI()


@app.post("/orders/{number}")
def place_order(number: int, refused: bool = False) -> str:
    """An order whose card was refused is rolled back, and its message with it."""
    with Session(engine) as session, session.begin() as transaction:
        session.execute(text("INSERT INTO orders VALUES (:id)"), {"id": number})
        message_id = outbox.add(session, topic="orders", key=str(number), value="placed")
        if refused:
            transaction.rollback()
    return message_id


def handle(message: Any) -> None:
    """Asks for the payment of an order, however often its message comes."""
    with engine.begin() as connection, marks.handle_once(connection, message) as attempt:
        if attempt.is_first:
            paid = {"id": int(message.key())}
            connection.execute(text("INSERT INTO payments VALUES (:id)"), paid)
