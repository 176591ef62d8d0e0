"""A shop on Django: an order and its message commit together, and a message is handled once."""

import os
from typing import Any

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path
from sqlalchemy import NullPool, create_engine

from backlogctl_delivery.idempotent.sql import Marks
from backlogctl_delivery.outbox import Outbox

shop = {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}
settings.configure(ROOT_URLCONF=__name__, DATABASES={"default": shop}, ALLOWED_HOSTS=["*"])
app = get_wsgi_application()

# SQLAlchemy on Django's own connection, within its transaction, which Django alone ends.
joined = create_engine("sqlite://", creator=lambda: connection.connection, poolclass=NullPool)
for end in ("do_commit", "do_rollback", "do_close"):
    setattr(joined.dialect, end, lambda _: None)
# What sends is no part of a request: it has connections of its own.
outbox = Outbox("sqlite:///shop.db", kafka={"bootstrap.servers": os.environ["SHOP_KAFKA"]})
marks = Marks("payments_handled")


def place_order(request: HttpRequest, number: int) -> HttpResponse:
    """An order whose card was refused is rolled back, and its message with it."""
    with transaction.atomic(), joined.begin() as own:
        connection.cursor().execute("INSERT INTO orders VALUES (%s)", [number])
        message_id = outbox.add(own, topic="orders", key=str(number), value="placed")
        transaction.set_rollback("refused" in request.GET)
    return HttpResponse(message_id)


def handle(message: Any) -> None:
    """Asks for the payment of an order, however often its message comes."""
    with transaction.atomic(), joined.begin() as own, marks.handle_once(own, message) as attempt:
        if attempt.is_first:
            connection.cursor().execute("INSERT INTO payments VALUES (%s)", [int(message.key())])


urlpatterns = [path("orders/<int:number>", place_order)]
