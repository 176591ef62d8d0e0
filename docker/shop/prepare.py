"""Makes the shop's topics, once, and puts its group at the beginning of `orders`.

Three replicas; and for `orders` a retention that a slow consumer will meet.
"""

from __future__ import annotations

import os

from backlogctl.kafka.admin import committed_offsets, create_topic, set_group_offsets

PARTITIONS = range(3)
# Receipts come by the outbox; look-back reads the last.
OTHERS = ("receipts", "look_back_msg")


def main() -> None:
    """Leaves what is there as it is."""
    cluster, topic = {"bootstrap.servers": os.environ["BOOTSTRAP_SERVERS"]}, os.environ["TOPIC"]
    group = os.environ["GROUP"]
    create_topic(
        cluster,
        topic,
        partitions=len(PARTITIONS),
        replication=3,
        config={
            "min.insync.replicas": "2",
            "retention.ms": os.environ["SHOP_RETENTION_MS"],
            "segment.ms": "30000",
        },
        exist_ok=True,
    )
    for other in OTHERS:
        create_topic(
            cluster,
            other,
            partitions=len(PARTITIONS),
            replication=3,
            config={"min.insync.replicas": "2"},
            exist_ok=True,
        )
    # A strict consumer needs a committed offset to begin at.
    commits = committed_offsets(cluster, group, topic, PARTITIONS)
    if set(commits.values()) == {None}:
        set_group_offsets(cluster, group, topic, dict.fromkeys(PARTITIONS, 0), new_topic=True)


if __name__ == "__main__":
    main()
