"""The headers we write on an injected message, and how they are read back."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

MESSAGE_ID = "backlog-message-id"
RECOVERY_ID = "backlog-recovery-id"
ORIGINAL_TIME = "backlog-original-time"
FIDELITY = "backlog-fidelity"
REPLAYS = "backlog-replays"
ALL = (MESSAGE_ID, RECOVERY_ID, ORIGINAL_TIME, FIDELITY, REPLAYS)
# What the application that sent a message calls it; a copy that is put back keeps it.
EVENT_ID = "backlog-event-id"
# Those of a sequenced producer: its number, what it did not deliver, and that it ends.
SEQUENCE_HEADERS = ("backlog-sequence", "backlog-skipped", "backlog-sequence-end")
# What says something of one message only: copied into another one it would be false.
OF_ONE_MESSAGE = frozenset((*ALL, EVENT_ID, *SEQUENCE_HEADERS))

Headers = Sequence[tuple[str, bytes | None]]


def make_message_id(topic: str, primary_key: Iterable[str | None], version: str) -> str:
    """The deterministic id of a rebuilt message: H(topic, source primary key, version).

    Each part is written with its length before it, so that no two lists of parts read alike.

    Returns:
        32 hexadecimal digits (the first 128 bits of SHA-256).
    """
    digest = hashlib.sha256()
    for part in (topic, *primary_key, version):
        raw = b"\xff" if part is None else part.encode()
        digest.update(len(raw).to_bytes(4, "big") + raw)
    return digest.hexdigest()[:32]


def make_original_id(topic_id: str, partition: int, offset: int) -> str:
    """The deterministic id of a message that exists: H(topic id, partition, offset).

    Returns:
        32 hexadecimal digits (the first 128 bits of SHA-256).
    """
    return make_message_id(topic_id, [str(partition)], str(offset))


def hash_identity(topic_id: str, identity: bytes) -> str:
    """What a bookmark keeps of a message's identity: SHA-256 of the topic's id, a zero byte and
    the identity.

    Returns:
        32 hexadecimal digits (the first 128 bits).
    """
    return hashlib.sha256(topic_id.encode() + b"\0" + identity).hexdigest()[:32]


def stamp(
    headers: Headers,
    *,
    message_id: str,
    recovery_id: str,
    original_time: str,
    fidelity: str,
    replays: int = 1,
) -> list[tuple[str, bytes | None]]:
    """The stream's own headers, then ours."""
    return [
        *headers,
        (MESSAGE_ID, message_id.encode()),
        (RECOVERY_ID, recovery_id.encode()),
        (ORIGINAL_TIME, original_time.encode()),
        (FIDELITY, fidelity.encode()),
        (REPLAYS, str(replays).encode()),
    ]


def find_header(headers: Headers | None, name: str) -> str | None:
    """The last header of that name as text; None where there is none."""
    value = find_value(headers, name)
    return None if value is None else value.decode("utf-8", "replace")


def find_value(headers: Headers | None, name: str) -> bytes | None:
    """The value of the last header of that name; None where there is none, or it is NULL."""
    return next((value for key, value in reversed(headers or ()) if key == name), None)


def check_header_name(name: str) -> str:
    """A header's name as it is, if the client writes it as it is.

    librdkafka ends it at a NUL, and confluent-kafka 2.16.1 dies of half a character (a surrogate).

    Raises:
        ValueError: it does not.
    """
    if "\0" in name:
        raise ValueError("a header's name has a NUL")
    name.encode()
    return name
