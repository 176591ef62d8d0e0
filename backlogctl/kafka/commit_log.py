"""What groups committed, and who was in them, from the brokers' own log of it.

Each commit is a record of `__consumer_offsets`, and so is each change of a group's members. All
records of a group are in one partition of it.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

# Records as bytes: keys and values begin with two bytes that say what follows.
#
# The schemas are in Kafka's group-coordinator jar (`common/message/*.json`). All keys so far begin
# with the group's name. Values are flexible (KIP-482: compact strings, tags at the end) from
# version 4 on, those of KIP-848 from their first; what is not needed at the end is not read.

TOPIC = "__consumer_offsets"
CONSUMER, STREAMS = "consumer", "streams"
# So many members are named; all are counted.
NAMED_CLIENTS = 16

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHORT, _INT, _LONG = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_COMMITS, _CLASSIC, _LAST_KEY = (0, 1), 2, 23
# By the key of a group's epoch, and that of a member, the kind of group (KIP-848, KIP-1071).
_EPOCHS = {3: CONSUMER, 17: STREAMS}
_MEMBERS = {5: CONSUMER, 19: STREAMS}
_NEWEST_COMMIT, _NEWEST_CLASSIC, _NEWEST_MODERN = 4, 4, 0
_FLEXIBLE = 4


class MemberClient(NamedTuple):
    """Whose member it is, as it said itself, and from where it is connected."""

    client_id: str
    host: str


class CommitEntry(NamedTuple):
    """A commit; with `offset` None it is gone: expired, or deleted with its group or topic.

    `at` is the coordinator's time of the commit; None where the record has none.
    """

    group: str
    topic: str
    partition: int
    offset: int | None = None
    epoch: int | None = None
    metadata: str = ""
    at: datetime | None = None


class ClassicEntry(NamedTuple):
    """All members of a classic group; none, and no generation, when it is gone."""

    group: str
    members: int = 0
    generation: int | None = None
    protocol_type: str = ""
    clients: tuple[MemberClient, ...] = ()


class MemberEntry(NamedTuple):
    """A member of a newer group as it is now; `client` is None when it has left."""

    group: str
    kind: str
    member_id: str
    client: MemberClient | None = None


class EpochEntry(NamedTuple):
    """The epoch of a newer group; None when it is gone, or has become a classic one."""

    group: str
    kind: str
    epoch: int | None = None


class SkippedEntry(NamedTuple):
    """`what` has no meaning here, or is not known: `key 8`, `value 5 of key 1`."""

    what: str


Entry = CommitEntry | ClassicEntry | MemberEntry | EpochEntry | SkippedEntry


def decode_entry(key: bytes, value: bytes | None) -> Entry:
    """What a record says; one of a version that is not known, or is cut, is skipped."""
    try:
        source = _Source(key)
        kind = source.take(_SHORT)
        entry = _decode(kind, source, value)
    except (struct.error, UnicodeDecodeError, IndexError):
        return SkippedEntry(f"unreadable: {key[:2].hex()} {(value or b'')[:2].hex()}".rstrip())
    return entry or SkippedEntry(f"key {kind}")


def find_group_name(key: bytes) -> bytes:
    """The group's name in a key, without reading the rest: most records are of other groups."""
    return key[4 : 4 + int.from_bytes(key[2:4])]


def is_known_key(key: bytes) -> bool:
    """Whether its kind was there when this was written."""
    return 0 <= int.from_bytes(key[:2], signed=True) <= _LAST_KEY


def find_log_partition(group: str, partitions: int) -> int:
    """Which of the log's partitions has all records of a group: Kafka's GroupCoordinator, by the
    hash code of a Java string, which counts UTF-16 units."""
    code = 0
    for (unit,) in struct.iter_unpack(">H", group.encode("utf-16-be", "surrogatepass")):
        code = (31 * code + unit) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >> 31 else code
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions


class _Source:
    """Bytes, and how far they are read."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, form: struct.Struct) -> int:
        (number,) = form.unpack_from(self.data, self.at)
        self.at += form.size
        return int(number)

    def take_size(self, flexible: bool) -> int:
        """Of an array or a text of several kinds; -1 is null."""
        if not flexible:
            return self.take(_INT)
        size = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            size |= (byte & 0x7F) << shift
            if byte < 0x80:
                return size - 1
            shift += 7

    def take_text(self, flexible: bool = False) -> str:
        """A text; "" for null."""
        size = self.take_size(True) if flexible else self.take(_SHORT)
        return self.pass_over(size).decode()

    def pass_over(self, size: int) -> bytes:
        """So many bytes.

        Raises:
            IndexError: there are fewer.
        """
        end = self.at + max(0, size)
        if end > len(self.data):
            raise IndexError(end)
        found, self.at = self.data[self.at : end], end
        return found


def _decode(kind: int, key: _Source, value: bytes | None) -> Entry | None:
    """None for a kind of key that is not needed, or not known."""
    if kind in _COMMITS:
        return _decode_commit(kind, key, value)
    if kind == _CLASSIC:
        return _decode_classic(key.take_text(), value)
    if name := _MEMBERS.get(kind):
        group, member = key.take_text(), key.take_text()
        if value is None:
            return MemberEntry(group, name, member)
        source = _Source(value)
        if (version := source.take(_SHORT)) > _NEWEST_MODERN:
            return SkippedEntry(f"value {version} of key {kind}")
        source.take_text(True)  # its instance id
        source.take_text(True)  # its rack
        return MemberEntry(group, name, member, _take_client(source, True))
    if name := _EPOCHS.get(kind):
        group = key.take_text()
        if value is None:
            return EpochEntry(group, name)
        source = _Source(value)
        if (version := source.take(_SHORT)) > _NEWEST_MODERN:
            return SkippedEntry(f"value {version} of key {kind}")
        return EpochEntry(group, name, source.take(_INT))
    return None


def _decode_commit(kind: int, key: _Source, value: bytes | None) -> Entry:
    group, topic, partition = key.take_text(), key.take_text(), key.take(_INT)
    if value is None:
        return CommitEntry(group, topic, partition)
    source = _Source(value)
    if not 0 <= (version := source.take(_SHORT)) <= _NEWEST_COMMIT:
        return SkippedEntry(f"value {version} of key {kind}")
    offset = source.take(_LONG)
    epoch = source.take(_INT) if version >= 3 else -1
    metadata = source.take_text(version >= _FLEXIBLE)
    at = to_log_time(source.take(_LONG))
    known = epoch if epoch >= 0 else None
    return CommitEntry(group, topic, partition, offset, known, metadata, at)


def _decode_classic(group: str, value: bytes | None) -> Entry:
    if value is None:
        return ClassicEntry(group)
    source = _Source(value)
    if not 0 <= (version := source.take(_SHORT)) <= _NEWEST_CLASSIC:
        return SkippedEntry(f"value {version} of key {_CLASSIC}")
    flexible = version >= _FLEXIBLE
    protocol_type, generation = source.take_text(flexible), source.take(_INT)
    source.take_text(flexible)  # the protocol
    source.take_text(flexible)  # the leader's member id
    if version >= 2:
        source.take(_LONG)  # since when it is in this state
    count = max(0, source.take_size(flexible))
    clients = tuple(_take_member(source, version) for _ in range(min(count, NAMED_CLIENTS)))
    return ClassicEntry(group, count, generation, protocol_type, clients)


def _take_member(source: _Source, version: int) -> MemberClient:
    flexible = version >= _FLEXIBLE
    source.take_text(flexible)  # its member id
    if version >= 3:
        source.take_text(flexible)  # its instance id
    client = _take_client(source, flexible)
    source.pass_over(8 if version >= 1 else 4)  # its time-outs
    for _ in ("subscription", "assignment"):
        source.pass_over(source.take_size(flexible))
    if flexible:
        _pass_over_tags(source)
    return client


def _pass_over_tags(source: _Source) -> None:
    for _ in range(source.take_size(True) + 1):
        source.take_size(True)
        source.pass_over(source.take_size(True) + 1)


def _take_client(source: _Source, flexible: bool) -> MemberClient:
    client_id = source.take_text(flexible)
    return MemberClient(client_id, source.take_text(flexible).lstrip("/"))


def to_log_time(milliseconds: int) -> datetime | None:
    """None for what is no time."""
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds) if milliseconds > 0 else None
    except OverflowError:
        return None
