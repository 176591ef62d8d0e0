"""Takes payments, and tells what became of them.

python payment_service.py topics          makes the topics
python payment_service.py serve           answers what became of a payment, until Ctrl-C
python payment_service.py pay ID          one payment
    --die-after prepare | transaction     and ends there, as `kill -9` would end it
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from sqlalchemy import create_engine
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from backlogctl_delivery.lookback.producer import LookBackProducer

SERVERS: dict[str, str | int | float | bool] = {"bootstrap.servers": os.environ["SHOP_KAFKA"]}
engine = create_engine("sqlite:///payments.db")


class Base(DeclarativeBase):
    """The service's tables."""


class Payment(Base):
    """A payment that was made, or one that never will be."""

    __tablename__ = "payments"
    payment_id: Mapped[str] = mapped_column(primary_key=True)
    state: Mapped[str]


def pay(payment_id: str, die_after: str | None) -> None:
    """The message is handed over before the transaction, and sent only if that commits."""
    look_back = LookBackProducer(Producer({**SERVERS, "acks": "all"}), service="payments")
    value = json.dumps({"payment_id": payment_id})
    look_back.prepare("payment", payment_id, topic="payments", key=payment_id, value=value)
    if die_after == "prepare":
        os.kill(os.getpid(), signal.SIGKILL)
    with Session(engine) as session, session.begin():
        session.add(Payment(payment_id=payment_id, state="paid"))
    if die_after == "transaction":
        os.kill(os.getpid(), signal.SIGKILL)
    look_back.commit("payment", payment_id)


def look_back_at(payment_id: str) -> str:
    """What became of a payment, for ever.

    Its id is taken if nobody has: a transaction that is still to come fails on the primary key, and
    one that is open is waited for. So it is never said to be rolled back and paid afterwards.
    """
    never = insert(Payment).values(payment_id=payment_id, state="never")
    with Session(engine) as session, session.begin():
        session.execute(never.on_conflict_do_nothing())
        found = session.get_one(Payment, payment_id)
        return "committed" if found.state == "paid" else "rolled_back"


class Answers(BaseHTTPRequestHandler):
    """`POST {"biz_type": "payment", "biz_id": "7"}` is answered by `{"status": "committed"}`."""

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = look_back_at(question["biz_id"])
        answer = json.dumps({"status": status}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        print(f"asked about payment {question['biz_id']}: {status}", flush=True)

    def log_message(self, *_: object) -> None:
        """One line for a question is enough."""


def serve() -> None:
    """Until Ctrl-C."""
    host, _, port = os.environ["PAYMENTS"].partition(":")
    with ThreadingHTTPServer((host, int(port)), Answers) as server:
        server.serve_forever()


def make_topics() -> None:
    """Waits until both are there."""
    admin = AdminClient(SERVERS)
    wanted = [NewTopic(name, 3, 1) for name in ("look_back_msg", "payments")]
    for made in admin.create_topics(wanted).values():
        made.result(30)


def main() -> None:
    parser = argparse.ArgumentParser(description="Takes payments.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("topics")
    verbs.add_parser("serve")
    paying = verbs.add_parser("pay")
    paying.add_argument("id")
    paying.add_argument("--die-after", choices=("prepare", "transaction"))
    arguments = parser.parse_args()
    Base.metadata.create_all(engine)
    if arguments.verb == "topics":
        make_topics()
    elif arguments.verb == "serve":
        serve()
    else:
        pay(arguments.id, arguments.die_after)


if __name__ == "__main__":
    main()
