"""Makes the shop and its topic on the Kafka that SHOP_KAFKA names; its service falls behind.

With `--expire` retention then deletes 1,000 orders that the service did not read.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from backlogctl.clock import utc_now
from backlogctl.kafka.clients import Properties
from examples.lost_orders import (
    UNREAD,
    YOUNG,
    expire_old,
    handle_orders,
    make_orders,
    make_topic,
    publish_orders,
    read_ends,
    read_table,
    write_table,
)


def fall_behind(client: Properties, here: Path) -> None:
    """Publishes the old orders, and handles all but 1,000 of them."""
    orders = make_orders(utc_now())
    make_topic(client)
    write_table(f"sqlite:///{here / 'shop.db'}", orders)
    publish_orders(client, orders[:-YOUNG])
    ends = read_ends(client)
    stop_at = {number: end - UNREAD[number] for number, end in ends.items()}
    handled = handle_orders(client, here / "warehouse.db", stop_at=stop_at)
    print(f"{len(orders):,} orders, {handled:,} handled, {sum(UNREAD.values()):,} unread")


def expire(client: Properties, here: Path) -> None:
    """Publishes the young orders, and lets retention delete the old ones."""
    ends = read_ends(client)
    publish_orders(client, read_table(f"sqlite:///{here / 'shop.db'}")[-YOUNG:])
    expire_old(client, ends)
    print(f"{sum(UNREAD.values()):,} orders deleted unread")


def main() -> None:
    step = expire if "--expire" in sys.argv[1:] else fall_behind
    step({"bootstrap.servers": os.environ["SHOP_KAFKA"]}, Path(__file__).parent)


if __name__ == "__main__":
    main()
