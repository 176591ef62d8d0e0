"""Connections to PostgreSQL that notice a peer that has vanished."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Engine, make_url

from backlogctl.config import Source
from backlogctl.spark_backfill.sources.reflection import open_engine
from backlogctl_delivery.database import LIVENESS, add_liveness, make_engine
from tests.services import Postgres


def test_what_the_user_says_wins() -> None:
    url = add_liveness(make_url("postgresql+psycopg://h/d?keepalives_idle=60&sslmode=require"))
    assert url.query == {**LIVENESS, "keepalives_idle": "60", "sslmode": "require"}


@contextmanager
def find_socket(engine: Engine) -> Iterator[socket.socket]:
    with engine.connect() as connection:
        raw = connection.connection.driver_connection
        assert raw is not None
        with socket.socket(fileno=os.dup(raw.fileno())) as one:
            yield one
    engine.dispose()


@pytest.mark.postgres
@pytest.mark.parametrize("whose", ["ledger", "source"])
def test_the_sockets_have_limits(whose: str, postgres: Postgres) -> None:
    url = postgres.url()
    engine = (
        make_engine(make_url(url))
        if whose == "ledger"
        else open_engine(Source.model_validate({"url": url}), "shop")
    )
    with find_socket(engine) as one:
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 5
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
