"""What the records of the commit log say: bytes made by the brokers' own schemas."""

from __future__ import annotations

import json
import re
import uuid
import zipfile
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlogctl.kafka.commit_records import (
    NAMED_CLIENTS,
    ClassicEntry,
    CommitRecord,
    EpochEntry,
    GroupEntry,
    GroupMembers,
    MemberClient,
    MemberEntry,
    MembersRecord,
    SkippedEntry,
    decode_record,
    find_group_name,
    find_log_partition,
    is_known_key,
)
from backlogctl.sandbox.embedded import ensure_kafka_jars
from tests.kit.kafka import need_kafka

AT = datetime(2026, 11, 26, 4, 5, 6, 789000, UTC)
AT_MS = int(AT.timestamp()) * 1000 + 789
WRITTEN = datetime(2026, 11, 26, 4, 5, 7, tzinfo=UTC)
PLACE = (3, 1000)


def decode(key: bytes, value: bytes | None) -> object:
    return decode_record(key, value, WRITTEN, PLACE)


class JarSchemas:
    """The schemas of the brokers' own jar, encoded by kafka-python."""

    def __init__(self) -> None:
        (jar,) = [path for path in ensure_kafka_jars() if "group-coordinator-4" in path.name]
        with zipfile.ZipFile(jar) as found:
            self.all = {
                schema["name"]: schema
                for name in found.namelist()
                if re.fullmatch(r"common/message/\w+\.json", name)
                for schema in [json.loads(re.sub(r"(?m)^\s*//.*$", "", found.read(name).decode()))]
            }

    def versions(self, name: str) -> range:
        first, _, last = self.all[name]["validVersions"].partition("-")
        return range(int(first), int(last or first) + 1)

    def encode(self, name: str, version: int, **values: Any) -> bytes:
        from kafka.protocol.data_container import DataContainer
        from kafka.protocol.schemas import StructField
        from kafka.protocol.schemas.load_json import _resolve_common_structs

        schema = self.all[name]
        structs = {one["name"]: one["fields"] for one in schema.get("commonStructs", [])}
        for field in schema["fields"]:
            field.setdefault("versions", field.get("taggedVersions"))
        _resolve_common_structs(schema["fields"], structs)
        container = type(name, (DataContainer,), {"_struct": StructField(schema)})
        oldest = schema["flexibleVersions"].removesuffix("+")
        flexible = oldest != "none" and version >= int(oldest)
        body = container(**values).encode(version=version, compact=flexible, tagged=flexible)
        assert isinstance(body, bytes)
        return body

    def key(self, name: str, **values: Any) -> bytes:
        """Its version bytes are the number of its schema."""
        number: int = self.all[name]["apiKey"]
        return number.to_bytes(2) + self.encode(name, 0, **values)

    def value(self, name: str, version: int = 0, **values: Any) -> bytes:
        return version.to_bytes(2) + self.encode(name, version, **values)


@pytest.fixture(scope="module")
def schemas() -> JarSchemas:
    need_kafka(4, 0)
    return JarSchemas()


def make_commit_key(schemas: JarSchemas, name: str = "OffsetCommitKey") -> bytes:
    return schemas.key(name, group="order-service", topic="orders", partition=7)


@pytest.mark.parametrize("version", range(5))
def test_a_commit_of_every_version(schemas: JarSchemas, version: int) -> None:
    values: dict[str, Any] = {"offset": 1234, "metadata": "wörk", "commit_timestamp": AT_MS}
    if version >= 3:
        values["leader_epoch"] = 5
    if version >= 4:
        values["topic_id"] = uuid.uuid4()
    value = schemas.value("OffsetCommitValue", version, **values)
    epoch = 5 if version >= 3 else None
    found = decode(make_commit_key(schemas), value)
    assert found == CommitRecord("order-service", "orders", 7, 1234, epoch, "wörk", AT, PLACE)


def test_a_commit_of_the_oldest_brokers_and_one_without_an_epoch(schemas: JarSchemas) -> None:
    values: dict[str, Any] = {"offset": 1234, "metadata": "", "commit_timestamp": AT_MS}
    found = CommitRecord("order-service", "orders", 7, 1234, None, "", AT, PLACE)
    old = schemas.value("LegacyOffsetCommitValue", **values)
    assert decode(make_commit_key(schemas, "LegacyOffsetCommitKey"), old) == found
    plain = schemas.value("OffsetCommitValue", 3, leader_epoch=-1, **values)
    assert decode(make_commit_key(schemas), plain) == found
    timeless = schemas.value("OffsetCommitValue", 3, **{**values, "commit_timestamp": 2**63 - 1})
    assert decode(make_commit_key(schemas), timeless) == found._replace(at=WRITTEN)


def test_what_is_gone_has_no_value(schemas: JarSchemas) -> None:
    gone = CommitRecord("order-service", "orders", 7, None, None, "", WRITTEN, PLACE)
    assert decode(make_commit_key(schemas), None) == gone
    group = schemas.key("GroupMetadataKey", group="order-service")
    assert decode(group, None) == ClassicEntry("order-service", 0, None)
    names = {"group_id": "order-service"}
    for kind, word in (("ConsumerGroup", "consumer"), ("StreamsGroup", "streams")):
        key = schemas.key(f"{kind}MemberMetadataKey", member_id="m-1", **names)
        assert decode(key, None) == MemberEntry("order-service", word, "m-1")
        key = schemas.key(f"{kind}MetadataKey", **names)
        assert decode(key, None) == EpochEntry("order-service", word)


@pytest.mark.parametrize("count", [0, 2, NAMED_CLIENTS + 5])
@pytest.mark.parametrize("version", range(5))
def test_a_classic_group_of_every_version(schemas: JarSchemas, version: int, count: int) -> None:
    members = [make_member(version, number) for number in range(count)]
    values: dict[str, Any] = {"protocol": "range", "leader": "m-0"} if count else {}
    if version >= 2:
        values["current_state_timestamp"] = AT_MS
    value = schemas.value(
        *("GroupMetadataValue", version),
        protocol_type="consumer",
        generation=42,
        members=members,
        **{"protocol": None, "leader": None, **values},
    )
    key = schemas.key("GroupMetadataKey", group="order-service")
    named = tuple(MemberClient(f"client-{n}", "127.0.0.1") for n in range(count))[:NAMED_CLIENTS]
    assert decode(key, value) == ClassicEntry("order-service", count, 42, "consumer", named)


def make_member(version: int, number: int) -> dict[str, Any]:
    newer = {"group_instance_id": "i" if number else None} if version >= 3 else {}
    return {
        "member_id": f"m-{number}",
        "client_id": f"client-{number}",
        "client_host": "/127.0.0.1",
        "session_timeout": 45_000,
        "subscription": b"s" * 200,
        "assignment": b"a" * 300,
        **({"rebalance_timeout": 300_000} if version >= 1 else {}),
        **newer,
    }


def test_a_member_of_a_newer_group(schemas: JarSchemas) -> None:
    key = schemas.key("ConsumerGroupMemberMetadataKey", group_id="order-service", member_id="m-1")
    values: dict[str, Any] = {
        "client_id": "orders-1",
        "client_host": "/10.0.0.1",
        "rebalance_timeout_ms": 1,
    }
    none: dict[str, Any] = dict.fromkeys(
        ("rack_id", "subscribed_topic_regex", "server_assignor", "classic_member_metadata")
    )
    found = MemberEntry("order-service", "consumer", "m-1", MemberClient("orders-1", "10.0.0.1"))
    for instance in (None, "", "static-1"):
        value = schemas.value(
            "ConsumerGroupMemberMetadataValue",
            **{**none, **values, "instance_id": instance, "subscribed_topic_names": ["orders"]},
        )
        assert decode(key, value) == found
    key = schemas.key("StreamsGroupMemberMetadataKey", group_id="order-service", member_id="m-1")
    value = schemas.value(
        "StreamsGroupMemberMetadataValue",
        **{**values, "instance_id": None, "rack_id": "r" * 200, "topology_epoch": 1},
        process_id="p",
        user_endpoint=None,
        client_tags=[],
    )
    assert decode(key, value) == found._replace(kind="streams")


def test_the_epoch_of_a_newer_group(schemas: JarSchemas) -> None:
    key = schemas.key("ConsumerGroupMetadataKey", group_id="order-service")
    value = schemas.value("ConsumerGroupMetadataValue", epoch=9, metadata_hash=77)
    assert decode(key, value) == EpochEntry("order-service", "consumer", 9)
    key = schemas.key("StreamsGroupMetadataKey", group_id="order-service")
    value = schemas.value("StreamsGroupMetadataValue", epoch=9, metadata_hash=77)
    assert decode(key, value) == EpochEntry("order-service", "streams", 9)


READ = {0, 1, 2, 3, 5, 17, 19}


def test_all_that_these_brokers_write_is_known(schemas: JarSchemas) -> None:
    """A newer Kafka in the tests must be looked at: its schemas are those that are decoded."""
    keys = {name: one["apiKey"] for name, one in schemas.all.items() if name.endswith("Key")}
    assert sorted(keys.values()) == [*range(9), *range(10, 18), *range(19, 24)]
    for name, number in keys.items():
        fields = {field["name"]: "order-service" for field in schemas.all[name]["fields"]}
        words = {re.sub(r"(?<!^)([A-Z])", r"_\1", one).lower(): v for one, v in fields.items()}
        key = schemas.key(name, **words | ({"partition": 7} if "partition" in words else {}))
        assert find_group_name(key) == b"order-service"
        assert is_known_key(key)
        found = decode(key, b"\0\0")
        assert (found == SkippedEntry(f"key {number}")) is (number not in READ)
    newest = {"OffsetCommitValue": 4, "GroupMetadataValue": 4}
    for name in schemas.all:
        assert schemas.versions(name)[-1] == newest.get(name, 0), name


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("0018 0001 67", "0000", "key 24"),
        ("ffff 0001 67", "0000", "key -1"),
        ("0001 0001 67 0001 74 00000007", "0005 00", "value 5 of key 1"),
        ("0000 0001 67 0001 74 00000007", "ffff 00", "value -1 of key 0"),
        ("0002 0001 67", "0005 00", "value 5 of key 2"),
        ("0003 0001 67", "0001 00", "value 1 of key 3"),
        ("0013 0001 67 0001 6d", "0001 00", "value 1 of key 19"),
        ("", "", "unreadable:"),
        ("00", "0000", "unreadable: 00 0000"),
        ("0001 0001", "0000", "unreadable: 0001 0000"),
        ("0001 0001 67 0001 ff 00000007", "0003", "unreadable: 0001 0003"),
        ("0002 0001 67", "0004 ffffffffff", "unreadable: 0002 0004"),
    ],
)
def test_what_is_not_known_is_skipped_by_name(key: str, value: str, what: str) -> None:
    assert decode(bytes.fromhex(key), bytes.fromhex(value)) == SkippedEntry(what)


@given(data=st.data())
def test_no_bytes_end_the_reading(schemas: JarSchemas, data: st.DataObject) -> None:
    """Cut or changed anywhere."""
    members = [make_member(4, number) for number in range(2)]
    whole = schemas.value(
        *("GroupMetadataValue", 4),
        protocol_type="consumer",
        generation=1,
        protocol="range",
        leader="m-0",
        current_state_timestamp=AT_MS,
        members=members,
    )
    at = data.draw(st.integers(2, len(whole)))
    value = whole[:at] + data.draw(st.binary(max_size=12))
    key = schemas.key("GroupMetadataKey", group="order-service")
    assert isinstance(decode(key, value), ClassicEntry | SkippedEntry)


@pytest.mark.parametrize(
    ("group", "code"),
    [
        ("hello", 99162322),
        ("", 0),
        ("order-service", 562889526),
        ("😀", 1772899),  # two units of UTF-16
        ("polygenelubricants", 0),  # the smallest int, which has no absolute value
        ("zzzzzzzz", 1910022912),
    ],
)
def test_the_partition_is_that_of_kafka(group: str, code: int) -> None:
    assert find_log_partition(group, 2**31) == code
    assert find_log_partition(group, 50) == code % 50


HERE, LATER = (3, 1000), (3, 2000)
BEGIN = (3, 499)
ADA, BOB = MemberClient("ada", "10.0.0.1"), MemberClient("bob", "10.0.0.2")
JOINED = MemberEntry("order-service", "consumer", "a", ADA)
LEFT = JOINED._replace(client=None)
GONE = EpochEntry("order-service", "consumer")
CLASSIC = ClassicEntry("order-service", 2, 7, "consumer", (ADA, BOB))


def unsaid(
    members: int | None, is_exact: bool, *clients: MemberClient, **other: Any
) -> MembersRecord:
    words = {"generation": None, "protocol_type": "", "at": WRITTEN, "place": HERE, **other}
    return MembersRecord("order-service", members, is_exact, clients=clients, **words)


told = partial(unsaid, protocol_type="consumer")


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([CLASSIC], told(2, True, ADA, BOB, generation=7)),
        ([CLASSIC, ClassicEntry("order-service", 0, 8, "")], told(0, True, generation=8)),
        ([CLASSIC, ClassicEntry("order-service")], told(0, True)),
        ([CLASSIC, CLASSIC], None),
        # Who was in a newer group before is not known at first.
        ([JOINED], told(1, False, ADA)),
        ([JOINED, JOINED], None),
        ([JOINED, LEFT], told(None, False)),
        ([LEFT], unsaid(None, False)),
        ([GONE], unsaid(0, True)),
        ([GONE, JOINED], told(1, True, ADA)),
        ([GONE, JOINED, LEFT], told(0, True)),
        ([GONE, JOINED, JOINED._replace(member_id="b", client=BOB)], told(2, True, ADA, BOB)),
        ([JOINED, EpochEntry("order-service", "consumer", 5)], told(1, False, ADA, generation=5)),
        # Conversions, as their batches have them.
        ([CLASSIC, ClassicEntry("order-service"), JOINED], told(1, True, ADA)),
        ([JOINED, LEFT, GONE, CLASSIC], told(2, True, ADA, BOB, generation=7)),
        ([JOINED, CLASSIC], told(2, True, ADA, BOB, generation=7)),
        (
            [MemberEntry("order-service", "streams", "a", ADA)],
            told(1, False, ADA, protocol_type="streams"),
        ),
    ],
)
def test_who_is_in_a_group_by_its_records(
    entries: list[GroupEntry], expected: MembersRecord | None
) -> None:
    group = GroupMembers("order-service")
    *_, last = [group.take(entry, WRITTEN, HERE) for entry in entries]
    assert last == expected


@pytest.mark.parametrize(
    ("state", "kind", "is_exact"),
    [("", "consumer", True), (None, "consumer", False), ("", "streams", False)],
)
def test_a_group_that_was_not_there_begins_with_nobody(
    state: str | None, kind: str, is_exact: bool
) -> None:
    group, joined = GroupMembers("order-service"), JOINED._replace(kind=kind)
    assert group.settle(state, WRITTEN, BEGIN, LATER) is None
    assert group.take(joined, WRITTEN, HERE) == told(1, is_exact, ADA, protocol_type=kind)
    again = joined._replace(member_id="b", client=BOB)
    assert group.take(again, WRITTEN, HERE) == told(2, is_exact, ADA, BOB, protocol_type=kind)


@pytest.mark.parametrize(
    ("before", "states", "expected"),
    [
        # Without a record since the beginning it was so all the time.
        ([], ["empty"], unsaid(0, True, place=BEGIN)),
        ([], ["stable"], unsaid(1, False, place=BEGIN)),
        ([], [""], None),
        ([], ["dead"], None),
        ([], [None], None),
        ([], ["stable", "stable"], None),
        ([], ["", "empty"], unsaid(0, True, place=BEGIN)),
        # With records only from now on.
        ([JOINED, LEFT], ["empty"], told(0, True, place=LATER)),
        # It was asked before the last records came.
        ([JOINED], ["empty"], told(1, True, ADA, place=LATER)),
        ([JOINED, LEFT], ["stable"], None),
        ([JOINED, LEFT], ["stable", "stable"], told(1, False, place=LATER)),
        ([JOINED], ["stable", "stable"], None),
        ([CLASSIC], ["empty"], None),
    ],
)
def test_who_is_in_a_group_by_what_the_brokers_list(
    before: list[GroupEntry], states: list[str | None], expected: MembersRecord | None
) -> None:
    group = GroupMembers("order-service")
    for entry in before:
        group.take(entry, WRITTEN, HERE)
    *_, last = [group.settle(state, WRITTEN, BEGIN, LATER) for state in states]
    assert last == expected


def test_one_of_those_that_were_there_before_may_be_the_last() -> None:
    group = GroupMembers("order-service")
    assert group.settle("stable", WRITTEN, BEGIN, LATER) == unsaid(1, False, place=BEGIN)
    assert group.take(LEFT, WRITTEN, HERE) == unsaid(None, False)
    assert not group.is_known


def test_a_member_from_before_that_is_told_again_counts_once() -> None:
    group = GroupMembers("order-service")
    group.settle("stable", WRITTEN, BEGIN, LATER)
    again = group.take(JOINED, WRITTEN, HERE)
    assert again == told(1, False, ADA)
    assert group.take(LEFT, WRITTEN, HERE) == told(None, False)
