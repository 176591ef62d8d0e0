"""What became of a payment: answers that look-back asks for, from the business table.

python -m examples.delivery.payment_answers --database sqlite:///payments.db --port 8080
"""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError

from backlogctl.sandbox.secured import HOST
from backlogctl_delivery.crashpoints import reach
from examples.delivery.facts import PAYMENTS, open_engine


def find_out(engine: sa.Engine, payment_id: str) -> str:
    """What became of a payment: one that is not there will never be.

    A row without an amount takes its place: of this and a transaction that is still open one waits
    for the other, and one is refused.
    """
    with suppress(IntegrityError), engine.begin() as connection:
        connection.execute(sa.insert(PAYMENTS).values(id=payment_id, amount=None))
    with engine.connect() as connection:
        amount = connection.execute(
            sa.select(PAYMENTS.c.amount).where(PAYMENTS.c.id == payment_id)
        ).scalar_one()
    reach("answer.decided")
    return "rolled_back" if amount is None else "committed"


def make_server(engine: sa.Engine, port: int) -> ThreadingHTTPServer:
    """A server that is not serving yet."""

    class Handler(BaseHTTPRequestHandler):
        def handle(self) -> None:
            with suppress(ConnectionError):  # who asked was killed
                super().handle()

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            asked = self.rfile.read(length)
            if len(asked) < length:
                return  # the same
            try:
                code, document = 200, {"status": find_out(engine, json.loads(asked)["biz_id"])}
            except DBAPIError:
                code, document = 503, {}
            body = json.dumps(document).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer((HOST, port), Handler)
    server.daemon_threads = True
    return server


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Answer what became of payments.")
    parser.add_argument("--database", required=True)
    parser.add_argument("--port", required=True, type=int)
    options = parser.parse_args(arguments)
    make_server(open_engine(options.database), options.port).serve_forever()


if __name__ == "__main__":
    main()
