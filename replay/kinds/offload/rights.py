"""What an offload must be allowed on the cluster."""

from __future__ import annotations

from backlog.config import Config, Stream
from backlog.kafka.rights import Operation, Resource, Right
from replay.around.rights import list_seeing


def list_offloading(config: Config, stream: Stream) -> tuple[Right, ...]:
    """See, read the messages, commit for the group, and delete records."""
    del config
    topic, group = stream.topic, stream.group
    return (
        *list_seeing(stream),
        Right(Resource.TOPIC, topic, Operation.DELETE, "delete records that are archived"),
        Right(Resource.GROUP, group, Operation.READ, "commit where its consumers go on"),
    )
