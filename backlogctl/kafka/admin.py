"""Admin verbs. Each takes an admin client or plain client properties, and one Deadline.

Batched answers carry an error for each partition; every one is read, since a refusal of one
partition otherwise looks like a success (protocol P1).
"""

from __future__ import annotations

from backlogctl.kafka.clients import Connection, connect
from backlogctl.kafka.coordinator import (
    delete_group,
    describe_group_state,
    read_group_state,
    set_group_offsets,
)
from backlogctl.kafka.groups import Commit, GroupState, Member, committed_offsets, read_commits
from backlogctl.kafka.readers import list_topic_readers
from backlogctl.kafka.topics import (
    Isolation,
    TopicInfo,
    TopicSetting,
    alter_topic_config,
    create_topic,
    delete_records,
    delete_topic,
    describe_topic,
    list_newest_times,
    list_offsets,
    read_metadata,
    read_topic_id,
    read_topic_overrides,
    read_topic_settings,
)

__all__ = [
    "Commit",
    "Connection",
    "GroupState",
    "Isolation",
    "Member",
    "TopicInfo",
    "TopicSetting",
    "alter_topic_config",
    "committed_offsets",
    "connect",
    "create_topic",
    "delete_group",
    "delete_records",
    "delete_topic",
    "describe_group_state",
    "describe_topic",
    "list_newest_times",
    "list_offsets",
    "list_topic_readers",
    "read_commits",
    "read_group_state",
    "read_metadata",
    "read_topic_id",
    "read_topic_overrides",
    "read_topic_settings",
    "set_group_offsets",
]
