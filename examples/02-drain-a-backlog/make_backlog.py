"""Makes the topic `orders` and its backlog on the Kafka that SHOP_KAFKA names."""

from __future__ import annotations

import argparse
import os

from examples.shop import Size, make_backlog


def main() -> None:
    """Publishes orders of 5,000 customers, numbered for each customer."""
    parser = argparse.ArgumentParser(description="Makes a backlog of orders.")
    parser.add_argument("--orders", type=int, default=500_000)
    size = Size(orders=parser.parse_args().orders, customers=5_000)
    make_backlog(os.environ["SHOP_KAFKA"], size)
    print(f"{size.orders:,} orders of {size.customers:,} customers")


if __name__ == "__main__":
    main()
