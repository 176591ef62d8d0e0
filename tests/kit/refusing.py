"""A Kafka that refuses chosen requests, as managed clusters do: a proxy before the real one."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

from kafka.protocol import admin, metadata, producer
from kafka.protocol.consumer import offsets


class Api(IntEnum):
    """Requests that may be refused, by their key."""

    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    DELETE_GROUPS = 42
    INCREMENTAL_ALTER_CONFIGS = 44
    DESCRIBE_CLIENT_QUOTAS = 48
    DESCRIBE_QUORUM = 55
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69


class Refusing(StrEnum):
    """How."""

    REFUSED = "refused"  # an error code in the answer
    MISSING = "not there"  # ApiVersions does not name it; whoever asks is hung up on
    CLOSED = "closed"  # named, and whoever asks is hung up on


CLUSTER_DENIED, TOPIC_DENIED, GROUP_DENIED, ID_DENIED = 31, 29, 30, 53
UNSUPPORTED, POLICY = 35, 44
_METADATA, _API_VERSIONS = 3, 18
# Answers that tell addresses of brokers: Metadata, FindCoordinator, DescribeCluster.
_ADDRESSES = frozenset({3, 10, 60})
_MESSAGE = "refused by this cluster"


def _refuse_resources(request: Any, code: int) -> dict[str, Any]:
    told = {"error_code": code, "error_message": _MESSAGE}
    return {
        "responses": [
            {**told, "resource_type": one.resource_type, "resource_name": one.resource_name}
            for one in request.resources
        ]
    }


def _refuse_partitions(request: Any, code: int) -> dict[str, Any]:
    def tell(topic: Any) -> list[dict[str, Any]]:
        # DeleteRecords has an offset with each, DescribeProducers numbers alone.
        numbers = getattr(topic, "partition_indexes", None)
        if numbers is None:
            numbers = [one.partition_index for one in topic.partitions]
        return [{"partition_index": number, "error_code": code} for number in numbers]

    return {"topics": [{"name": one.name, "partitions": tell(one)} for one in request.topics]}


def _refuse_epochs(request: Any, code: int) -> dict[str, Any]:
    return {
        "topics": [
            {
                "topic": topic.topic,
                "partitions": [
                    {"partition": one.partition, "error_code": code} for one in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }


_Tell = Callable[[Any, int], dict[str, Any]]
_TELL: dict[int, tuple[Any, Any, _Tell]] = {}


def _teach(name: str, tell: _Tell, module: Any = admin) -> None:
    request, response = (getattr(module, f"{name}{end}") for end in ("Request", "Response"))
    _TELL[request.API_KEY] = (request, response, tell)


def _tell_once(_: Any, code: int) -> dict[str, Any]:
    return {"error_code": code}


for _name in ("ListGroups", "ListTransactions", "DescribeLogDirs", "DescribeQuorum"):
    _teach(_name, _tell_once)
for _name in ("DescribeClientQuotas", "DescribeAcls"):
    _teach(_name, lambda _, code: {"error_code": code, "error_message": _MESSAGE})
_teach("InitProducerId", _tell_once, producer)
_teach("EndTxn", _tell_once, producer)
_teach("OffsetForLeaderEpoch", _refuse_epochs, offsets)
_teach("AlterConfigs", _refuse_resources)
_teach("IncrementalAlterConfigs", _refuse_resources)
_teach("DescribeConfigs", lambda r, code: {"results": _refuse_resources(r, code)["responses"]})
_teach("DeleteRecords", _refuse_partitions)
_teach("DescribeProducers", _refuse_partitions)
_teach(
    "DescribeGroups",
    lambda r, code: {"groups": [{"error_code": code, "group_id": name} for name in r.groups]},
)
_teach(
    "DescribeTransactions",
    lambda r, code: {
        "transaction_states": [
            {"error_code": code, "transactional_id": name} for name in r.transactional_ids
        ]
    },
)
_teach(
    "CreateTopics",
    lambda r, code: {
        "topics": [
            {"name": one.name, "error_code": code, "error_message": _MESSAGE} for one in r.topics
        ]
    },
)


@dataclass
class Refusals:
    """What is refused from now on; a change counts for the next request, of versions for the next
    connection. `asked` are the keys of all requests so far. With `nameless` metadata name no broker,
    as those of one that has just started."""

    how: Refusing = Refusing.REFUSED
    apis: frozenset[int] = frozenset()
    code: int = CLUSTER_DENIED
    nameless: bool = False
    asked: list[int] = field(default_factory=list)

    def refuse(self, how: Refusing, apis: Collection[int], code: int = CLUSTER_DENIED) -> None:
        self.how, self.apis, self.code = how, frozenset(apis), code
        self.asked.clear()


@dataclass(frozen=True)
class RefusingKafka:
    """`bootstrap` is the proxy's; clients stay with it."""

    bootstrap: str
    refusals: Refusals

    @property
    def properties(self) -> dict[str, str]:
        return {"bootstrap.servers": self.bootstrap}


@contextmanager
def start_refusing(bootstrap: str) -> Iterator[RefusingKafka]:
    """A proxy before a cluster of one plain broker."""
    host, _, port = bootstrap.partition(":")
    with socket.create_server((host, 0)) as server:
        refusals = Refusals()
        near = int(server.getsockname()[1])
        proxy = _Proxy(host, int(port), near, refusals)
        threading.Thread(target=proxy.accept, args=(server,), daemon=True).start()
        yield RefusingKafka(f"{host}:{near}", refusals)


class _Proxy:
    def __init__(self, host: str, far: int, near: int, refusals: Refusals) -> None:
        self._place, self._refusals = (host, far), refusals
        self._far, self._near = (host.encode() + struct.pack(">i", port) for port in (far, near))

    def accept(self, server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = server.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """One request after the other: a broker answers a connection's requests so, too."""
        with suppress(OSError), client, socket.create_connection(self._place) as broker:
            while (request := _read_frame(client)) is not None:
                key, version = struct.unpack(">hh", request[:4])
                self._refusals.asked.append(key)
                refused = key in self._refusals.apis
                if refused and self._refusals.how is not Refusing.REFUSED:
                    return
                if refused:
                    _write_frame(client, make_refusal(request, self._refusals.code))
                    continue
                _write_frame(broker, request)
                answer = _read_frame(broker)
                if answer is None:
                    return
                _write_frame(client, self._rewrite(key, version, answer))

    def _rewrite(self, key: int, version: int, answer: bytes) -> bytes:
        if key == _METADATA and self._refusals.nameless:
            decoded = metadata.MetadataResponse.decode(answer, version=version, header=True)
            decoded.brokers = []
            return bytes(decoded.encode(header=True))
        if key in _ADDRESSES:
            return answer.replace(self._far, self._near)
        if key == _API_VERSIONS and self._refusals.how is Refusing.MISSING:
            return _leave_out(answer, version, self._refusals.apis)
        return answer


def make_refusal(request: bytes, code: int) -> bytes:
    """An answer to a request in which everything that can has this error code."""
    key, version = struct.unpack(">hh", request[:4])
    kind, answer, tell = _TELL[key]
    decoded = kind.decode(request, version=version, header=True)
    made = _make(answer, answer._struct.fields, tell(decoded, code), version)
    made.with_header(struct.unpack(">i", request[4:8])[0])
    return bytes(made.encode(header=True))


def _make(kind: Any, fields: Any, values: dict[str, Any], version: int) -> Any:
    """Of a message, or of a part of one, from plain values."""
    made = {}
    for name, value in values.items():
        part = fields[name]
        made[name] = (
            [_make(part.data_class, part.fields, one, version) for one in value]
            if isinstance(value, list)
            else value
        )
    return kind(version=version, **made)


def _leave_out(answer: bytes, version: int, apis: Collection[int]) -> bytes:
    """ApiVersions without some keys. Its header never has tags (KIP-511)."""
    flexible, at = version >= 3, 6  # correlation id, error code
    if flexible:
        count, shift = 0, 0
        while True:
            byte = answer[at]
            count, shift, at = count | (byte & 0x7F) << shift, shift + 7, at + 1
            if byte < 0x80:
                break
        count -= 1
    else:
        (count,), at = struct.unpack(">i", answer[at : at + 4]), at + 4
    size = 7 if flexible else 6
    rows = [answer[at + size * number : at + size * (number + 1)] for number in range(count)]
    kept = [row for row in rows if struct.unpack(">h", row[:2])[0] not in apis]
    told = _varint(len(kept) + 1) if flexible else struct.pack(">i", len(kept))
    return answer[:6] + told + b"".join(kept) + answer[at + size * count :]


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _read_frame(source: socket.socket) -> bytes | None:
    head = _read(source, 4)
    return None if head is None else _read(source, struct.unpack(">i", head)[0])


def _read(source: socket.socket, count: int) -> bytes | None:
    found = bytearray()
    while len(found) < count:
        if not (data := source.recv(count - len(found))):
            return None
        found += data
    return bytes(found)


def _write_frame(sink: socket.socket, frame: bytes) -> None:
    sink.sendall(struct.pack(">i", len(frame)) + frame)
