"""Requests that kafka-python does not have; their fields are in the JSON files beside this one.

The format is Kafka's own of message definitions. Imported where it is used: kafka-python is slow to
import.
"""

from __future__ import annotations

from kafka.protocol.api_message import ApiMessage


class DescribeShareGroupOffsetsRequest(ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]
    """Version 0 of KIP-932, version 1 of KIP-1226."""


class DescribeShareGroupOffsetsResponse(ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]
    """Version 1 has the lag; it is -1 where the broker does not know it."""


class ConsumerGroupDescribeRequest(ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]
    """Version 0 of KIP-848."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=__name__):  # type: ignore[call-arg, misc]
    """Version 0."""
