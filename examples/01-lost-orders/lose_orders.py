"""Makes the shop, its topic and the loss on the Kafka that SHOP_KAFKA names: 1,000 lost orders."""

from __future__ import annotations

import os
from pathlib import Path

from backlog.clock import utc_now
from replay.demo.rebuild.order_service import handle_orders
from replay.demo.rebuild.shop import YOUNG, make_orders, publish_orders, write_table
from replay.demo.rebuild.story import UNREAD
from replay.demo.rebuild.topic import expire_old, make_topic, read_ends


def main() -> None:
    """Publishes, handles all but 1,000 orders, and lets retention delete what is old."""
    bootstrap, here = os.environ["SHOP_KAFKA"], Path(__file__).parent
    orders = make_orders(utc_now())
    make_topic(bootstrap)
    write_table(here / "shop.db", orders)
    publish_orders(bootstrap, orders[:-YOUNG])
    ends = read_ends(bootstrap)
    stop_at = {number: end - UNREAD[number] for number, end in ends.items()}
    handled = handle_orders(bootstrap, here / "warehouse.db", stop_at=stop_at)
    publish_orders(bootstrap, orders[-YOUNG:])
    expire_old(bootstrap, ends)
    print(f"{len(orders):,} orders, {handled:,} handled, {sum(UNREAD.values()):,} deleted unread")


if __name__ == "__main__":
    main()
