"""Records of `__consumer_offsets`: what groups committed, and who was in them.

Keys and values begin with two bytes that say what follows; the schemas are in Kafka's
group-coordinator jar (`common/message/*.json`). All keys so far begin with the group's name.
Values are flexible (KIP-482: compact strings, tags at the end) from version 4 on, those of KIP-848
from their first. What comes after the last thing that is needed is not read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

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

Place = tuple[int, int]
"""Partition and offset of a record."""


class MemberClient(NamedTuple):
    """Whose member it is, as it said itself, and from where it is connected."""

    client_id: str
    host: str


class CommitRecord(NamedTuple):
    """One commit of a group, or that it is gone.

    Attributes:
        offset: None where the commit was deleted or has expired.
        epoch: the leader epoch in it. Only commits of what was consumed have one; those without may
            have been consumed too.
        at: when the coordinator took it; of what is gone, when it was noticed. In a transaction it
            counts from its end on, which is later.
    """

    group: str
    topic: str
    partition: int
    offset: int | None
    epoch: int | None
    metadata: str
    at: datetime
    place: Place


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


GroupEntry = ClassicEntry | MemberEntry | EpochEntry


def decode_record(
    key: bytes, value: bytes | None, at: datetime, place: Place
) -> CommitRecord | GroupEntry | SkippedEntry:
    """What a record says; one of a version that is not known, or is damaged, is skipped.
    `at`: the record's own time.
    """
    try:
        source = _Source(key)
        kind = source.take(_SHORT)
        if kind in _COMMITS:
            return _decode_commit(kind, source, value, at, place)
        return _decode_entry(kind, source, value) or SkippedEntry(f"key {kind}")
    except (struct.error, UnicodeDecodeError, IndexError):
        return SkippedEntry(f"unreadable: {key[:2].hex()} {(value or b'')[:2].hex()}".rstrip())


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


def to_log_time(milliseconds: int) -> datetime | None:
    """None for what is no time."""
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds) if milliseconds > 0 else None
    except OverflowError:
        return None


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
        """Of an array, or of bytes; -1 is null."""
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
        return self.pass_over(self.take_size(True) if flexible else self.take(_SHORT)).decode()

    def pass_over(self, size: int) -> bytes:
        """So many bytes. Raises IndexError: there are fewer."""
        end = self.at + max(0, size)
        if end > len(self.data):
            raise IndexError(end)
        found, self.at = self.data[self.at : end], end
        return found


def _decode_commit(
    kind: int, key: _Source, value: bytes | None, at: datetime, place: Place
) -> CommitRecord | SkippedEntry:
    group, topic, partition = key.take_text(), key.take_text(), key.take(_INT)
    if value is None:
        return CommitRecord(group, topic, partition, None, None, "", at, place)
    source = _Source(value)
    if not 0 <= (version := source.take(_SHORT)) <= _NEWEST_COMMIT:
        return SkippedEntry(f"value {version} of key {kind}")
    offset = source.take(_LONG)
    epoch = source.take(_INT) if version >= 3 else -1
    metadata = source.take_text(version >= _FLEXIBLE)
    at = to_log_time(source.take(_LONG)) or at
    known = epoch if epoch >= 0 else None
    return CommitRecord(group, topic, partition, offset, known, metadata, at, place)


def _decode_entry(kind: int, key: _Source, value: bytes | None) -> GroupEntry | SkippedEntry | None:
    """None for a kind of key that is not needed, or not known."""
    if kind != _CLASSIC and kind not in _MEMBERS and kind not in _EPOCHS:
        return None
    source = None if value is None else _Source(value)
    version = 0 if source is None else source.take(_SHORT)
    if not 0 <= version <= (_NEWEST_CLASSIC if kind == _CLASSIC else _NEWEST_MODERN):
        return SkippedEntry(f"value {version} of key {kind}")
    group = key.take_text()
    if kind == _CLASSIC:
        return ClassicEntry(group) if source is None else _decode_classic(group, source, version)
    if name := _MEMBERS.get(kind):
        member = key.take_text()
        return MemberEntry(group, name, member, None if source is None else _take_member(source))
    return EpochEntry(group, _EPOCHS[kind], None if source is None else source.take(_INT))


def _decode_classic(group: str, source: _Source, version: int) -> ClassicEntry:
    flexible = version >= _FLEXIBLE
    protocol_type, generation = source.take_text(flexible), source.take(_INT)
    source.take_text(flexible)  # the protocol
    source.take_text(flexible)  # the leader's member id
    if version >= 2:
        source.take(_LONG)  # since when it is in this state
    count = max(0, source.take_size(flexible))
    named = range(min(count, NAMED_CLIENTS))
    clients = tuple(_take_classic_member(source, version) for _ in named)
    return ClassicEntry(group, count, generation, protocol_type, clients)


def _take_classic_member(source: _Source, version: int) -> MemberClient:
    flexible = version >= _FLEXIBLE
    source.take_text(flexible)  # its member id
    if version >= 3:
        source.take_text(flexible)  # its instance id
    client = _take_client(source, flexible)
    source.pass_over(8 if version >= 1 else 4)  # its time-outs
    for _ in ("subscription", "assignment"):
        source.pass_over(source.take_size(flexible))
    if flexible:
        for _ in range(source.take_size(True) + 1):
            source.take_size(True)  # a tag's number
            source.pass_over(source.take_size(True) + 1)
    return client


def _take_member(source: _Source) -> MemberClient:
    source.take_text(True)  # its instance id
    source.take_text(True)  # its rack
    return _take_client(source, True)


def _take_client(source: _Source, flexible: bool) -> MemberClient:
    client_id = source.take_text(flexible)
    return MemberClient(client_id, source.take_text(flexible).lstrip("/"))


# Who is in a group. A classic group's record has all of its members; the members of a newer one
# have a record each. So of those that joined before the log was read nothing is known at first.


class MembersRecord(NamedTuple):
    """Who is in a group from this place of the log on, until the next such record of the group.

    Attributes:
        members: at least so many; None: unknown.
        is_exact: whether there are no more.
        generation: of a classic group, or the epoch of a newer one; None: unknown.
        protocol_type: `consumer`, `connect`, `streams`, ...; "" where it is unknown, or never had
            members.
        clients: some of them, where the log names them.
    """

    group: str
    members: int | None
    is_exact: bool
    generation: int | None
    protocol_type: str
    clients: tuple[MemberClient, ...]
    at: datetime
    place: Place


@dataclass(slots=True)
class GroupMembers:
    """Who is in one group, as far as it is known.

    `others`: at least so many joined a newer group, or are in a classic one, and no record was
    read of them.
    """

    group: str
    is_exact: bool = False
    others: int = 0
    is_told: bool = False
    _classic: ClassicEntry | None = None
    _modern: dict[str, MemberClient] = field(default_factory=dict)
    _generation: int | None = None
    _protocol_type: str = ""
    _is_fresh: bool = False
    _was_absent: bool = False
    _last: MembersRecord | None = None

    @property
    def is_known(self) -> bool:
        """Whether it is known that somebody, or nobody, is in it."""
        return self.is_exact or bool(self.others or self._modern)

    def take(self, entry: GroupEntry, at: datetime, place: Place) -> MembersRecord | None:
        """What a record changes; None where nothing."""
        is_newer = not isinstance(entry, ClassicEntry) and entry.kind == CONSUMER
        if is_newer and self._was_absent and not self.is_told:
            self.is_exact = True  # it has begun just now
        self.is_told = self._is_fresh = True
        match entry:
            case ClassicEntry():
                # A newer group that becomes a classic one tells first that its members are gone.
                if not self.is_exact:
                    self._modern.clear()
                self._classic, self.others, self.is_exact = entry, 0, True
                self._generation = entry.generation
                self._protocol_type = entry.protocol_type or self._protocol_type
            case EpochEntry(_, kind, None):
                self._modern.clear()
                self.others, self.is_exact, self._generation = 0, True, None
            case EpochEntry(_, kind, epoch):
                self._protocol_type, self._generation = kind, epoch
            case MemberEntry(_, kind, member_id, None):
                self._modern.pop(member_id, None)
                self.others = 0  # it may have been the last one
            case MemberEntry(_, kind, member_id, client):
                self._protocol_type = kind
                if client is not None:
                    self._modern[member_id] = client
        return self._tell(at, place)

    def settle(
        self, state: str | None, at: datetime, begin: Place, now: Place
    ) -> MembersRecord | None:
        """What the brokers say, where the log alone does not tell; None where that is nothing new.

        Args:
            state: of the group, in lower case, at a time up to which the log has been read; "" of
                one that is not there, or is no classic or consumer group; None where that is not
                known.
            begin: where what was read of the log begins.
            now: how far it was read.
        """
        is_fresh, self._is_fresh = self._is_fresh, False
        self._was_absent = state in ("", "dead")
        if self.is_exact or state is None or self._was_absent:
            return None
        if state == "empty":
            self.is_exact, self.others = True, 0
        elif is_fresh or self.is_known:
            return None  # the last one may have left since it was asked
        else:
            self.others = 1
        return self._tell(at, now if self.is_told else begin)

    def _tell(self, at: datetime, place: Place) -> MembersRecord | None:
        classic = self._classic or ClassicEntry(self.group)
        count = classic.members + max(self.others, len(self._modern))
        clients = classic.clients or tuple(self._modern.values())[:NAMED_CLIENTS]
        found = MembersRecord(
            self.group,
            count if count or self.is_exact else None,
            self.is_exact,
            self._generation,
            self._protocol_type,
            clients,
            at,
            place,
        )
        if self._last is not None and self._last[:6] == found[:6]:
            return None
        self._last = found
        return found
