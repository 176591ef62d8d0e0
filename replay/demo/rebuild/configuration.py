"""The demo's backlog.yaml; examples/01-lost-orders says the same (a test keeps it so)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

TEXT = """\
# A shop: orders are rows of a table, and messages of a topic that a service reads.
ledger: sqlite:///ledger.db
staging: {dir: ./staging}
spark:
  master: "local[2]"
  conf: {spark.sql.shuffle.partitions: "3"}

clusters:
  main:
    bootstrap.servers: ${env:SHOP_KAFKA}@LOGIN@

sources:
  shop: {url: "sqlite:///shop.db"}@WAREHOUSE@

streams:
  orders:
    cluster: main
    topic: orders
    group: order-service
    source:
      database: shop
      table: orders
      primary_key: [order_id]
      time_column: updated_at
      mutable: false   # an order does not change once its message is sent
      message:
        key: order_id
        value: {json: [order_id, user_id, status, amount, updated_at]}
      identity: {row: order_id, message: key}@CONSUMED@
      stale: restate
    # Put back at night, and gently.
    off_peak: {from: "@FROM@", to: "@TO@", timezone: UTC}
    limits: {messages_per_second: 500}
"""
_EXAMPLE_HOURS = ("00:30", "06:00")
_WAREHOUSE = """
  warehouse: {url: "sqlite:///warehouse.db"}"""
_LOGIN = """
    security.protocol: SASL_SSL
    sasl.mechanism: SCRAM-SHA-512
    sasl.username: backlogctl
    sasl.password: ${env:SHOP_KAFKA_PASSWORD}
    ssl.ca.location: ${env:SHOP_KAFKA_CA}"""
_CONSUMED = """
      # The consumer's own table says exactly which orders it has handled.
      consumed: {database: warehouse, table: processed_orders, column: order_id}"""


def render_configuration(
    now: datetime | None = None, *, consumed: bool = False, secure: bool = False
) -> str:
    """The file's text; with `now` its off-peak window lies around that moment.

    Args:
        consumed: names the service's own table of what it handled as evidence.
        secure: logs in as a user of its own, over TLS.
    """
    start, end = _EXAMPLE_HOURS
    if now is not None:
        at = now.astimezone(UTC)
        start = f"{at - timedelta(hours=1):%H:00}"
        end = f"{at + timedelta(hours=3):%H:00}"
    text = TEXT.replace("@FROM@", start).replace("@TO@", end)
    text = text.replace("@WAREHOUSE@", _WAREHOUSE if consumed else "")
    text = text.replace("@LOGIN@", _LOGIN if secure else "")
    return text.replace("@CONSUMED@", _CONSUMED if consumed else "")
