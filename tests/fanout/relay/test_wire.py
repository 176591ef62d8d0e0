"""What only the wire engine does: batches sent again, another engine's help, and its choice."""

from __future__ import annotations

import json
import random
import time
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any

import pyarrow as pa
import pytest
from kafka.errors import KafkaConnectionError

from backlogctl import wire
from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError, UsageError
from backlogctl.fanout.relay.interface import RECORD, WIRE, Position, RelayEngine
from backlogctl.fanout.relay.wire import WireEngine
from backlogctl.fanout.relay.worker import choose_relay_engine, read_position
from backlogctl.kafka.admin import list_offsets
from backlogctl.kafka.batches import CODECS
from backlogctl.kafka.raw_client import RawClient
from backlogctl.kafka.raw_fetch import FetchedBatches, RawFetch
from backlogctl.manifests import CHUNK_SCHEMA
from backlogctl.wire import produce as wire_produce
from backlogctl.wire.encoding import encode_table
from backlogctl.wire.produce import Membership, WireProducer, read_membership
from tests.fanout.relay.conftest import MakeWorld
from tests.fanout.relay.doing import (
    OLD_MS,
    check_copied,
    fill,
    pin_nothing,
    relay,
)
from tests.fanout.relay.test_contract import produce
from tests.kit.transactions import limit_rates, open_raw

COLUMNS = pa.schema([CHUNK_SCHEMA.field(name) for name in ("key", "value", "headers")])
PLAIN = {"bootstrap.servers": "a:1"}


def test_answers_that_are_lost_are_asked_for_with_the_same_numbers(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker has the batches: a connection broke before it could say so."""
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 3000}, size=100)
    await_sent = RawClient.await_sent
    lost: list[Any] = []

    def lose(client: RawClient, sent: Any, limit: Deadline) -> Any:
        answer = await_sent(client, sent, limit)
        if type(answer).__name__ == "ProduceResponse" and len(lost) < 4:
            lost.append(answer)
            raise KafkaConnectionError("it broke")
        return answer

    monkeypatch.setattr(RawClient, "await_sent", lose)
    with here.guarded() as task:
        (position,) = relay(WireEngine(), task, here.ranges()).values()
    assert len(lost) == 4
    assert position.relayed == 3000
    assert check_copied(here) == []


def test_fault_166_a_broker_that_throttles_is_waited_for(
    make_world: MakeWorld, unique: str
) -> None:
    """It answers at once, and takes nothing more for as long as it says (KIP-219); all together
    would not be through before its transaction's timeout."""
    here = make_world(partitions=1)
    produce(here, [(b"k%d" % n, random.Random(n).randbytes(2000), None) for n in range(4000)])
    rates = {"producer_byte_rate": 330_000.0, "consumer_byte_rate": 390_000.0}
    slow = replace(here, properties=limit_rates(here.properties, unique, **rates))
    began = time.monotonic()
    with slow.guarded(transaction_timeout_ms=15_000) as task:
        relay(WireEngine(), task, here.ranges())
    assert time.monotonic() - began > 1.0, "it was not throttled"
    assert check_copied(here) == []


def test_fault_174_a_quota_that_no_transaction_fits_is_told(
    make_world: MakeWorld, unique: str, engine: RelayEngine
) -> None:
    here = make_world(partitions=1)
    produce(here, [(b"k%d" % n, random.Random(n).randbytes(2000), None) for n in range(700)])
    limited = limit_rates(here.properties, unique, producer_byte_rate=50_000.0)
    slow = replace(here, properties=limited)
    with (
        slow.guarded(transaction_timeout_ms=6_000) as task,
        pytest.raises(BacklogError, match=r"brokers throttled this client for [0-9]") as caught,
    ):
        relay(engine, task, here.ranges())
    assert "client quotas" in caught.value.hint


def test_fault_174_a_relay_that_gets_through_is_told_what_a_quota_took(
    make_world: MakeWorld, unique: str, engine: RelayEngine
) -> None:
    here = make_world(partitions=1)
    # Brokers let a burst of ten seconds through, then nothing for as long as it was too large.
    produce(here, [(b"k%d" % n, random.Random(n).randbytes(2000), None) for n in range(330)])
    limited = limit_rates(here.properties, unique, producer_byte_rate=50_000.0)
    slow = replace(here, properties=limited)
    commits: list[Position] = []
    with slow.guarded(transaction_timeout_ms=60_000) as task:
        (position,) = relay(engine, task, here.ranges(), commits.append).values()
    found = position.throttling
    assert commits[-1].throttling == found
    assert 0.5 * found.seconds < found.throttled <= found.seconds
    assert "brokers throttled the relays for" in found.describe("the relays")
    assert read_position(json.loads(json.dumps(asdict(position)))) == position


def test_no_request_is_larger_than_brokers_take(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was small in the source becomes much, for many partitions at once."""
    monkeypatch.setattr(wire_produce, "_REQUEST_BYTES", 60_000)
    here = make_world(partitions=1, target_partitions=40)
    fill(here.properties, here.source, {0: 3000}, size=100)
    sizes: list[list[int]] = []
    send_soon = RawClient.send_soon

    def note(client: RawClient, request: Any, node: int) -> Any:
        if type(request).__name__ == "ProduceRequest":
            parts = [part for one in request.topic_data for part in one.partition_data]
            assert len({part.index for part in parts}) == len(parts)
            sizes.append([len(part.records) for part in parts])
        return send_soon(client, request, node)

    monkeypatch.setattr(RawClient, "send_soon", note)
    with here.guarded() as task:
        assert relay(WireEngine(), task, here.ranges())[0].relayed == 3000
    assert max(map(sum, sizes)) <= 60_000
    assert max(map(len, sizes)) > 1
    assert sum(map(sum, sizes)) > 5 * 60_000
    assert check_copied(here) == []


@pytest.mark.parametrize("codec", CODECS)
def test_each_codec_is_read_and_written(make_world: MakeWorld, codec: str) -> None:
    """As the broker and librdkafka write and read it."""
    name = codec.replace("none", "uncompressed")
    here = make_world(partitions=1, config={"compression.type": name})
    fill(here.properties, here.source, {0: 2000}, size=300)
    with here.guarded(compression=codec) as task:
        relay(WireEngine(), task, here.ranges())
    assert check_copied(here) == []


def test_fault_166_what_is_small_only_as_it_lies_in_the_log(make_world: MakeWorld) -> None:
    """One answer has 320 MB of records."""
    here = make_world(partitions=1, target_partitions=2)
    row = {"key": [b"k"], "value": [bytes(16 << 20)], "headers": [[]]}
    (large,) = encode_table(pa.table(row, COLUMNS), here.source, 0, OLD_MS, "zstd", 1)
    with (
        open_raw(here.properties) as client,
        closing(WireProducer(client, here.source, 60_000)) as producer,
    ):
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.write([large] * 20, 60)
        producer.flush(60)
        producer.commit_transaction(60)
    commits: list[Position] = []
    with here.guarded(compression="zstd") as task:
        assert relay(WireEngine(), task, here.ranges(), commits.append)[0].relayed == 20
    ends = list_offsets(here.admin, here.target, [0, 1], "latest", "read_committed")
    assert sum(ends.values()) == 20 + len(commits)


def test_messages_of_old_formats_go_message_by_message(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = make_world(partitions=1)
    fill(here.properties, here.source, {0: 500})

    def read(reader: RawFetch, within: float) -> list[FetchedBatches]:
        return [FetchedBatches(0, (), 3, None, 3)]

    monkeypatch.setattr(RawFetch, "read", read)
    with here.guarded() as task:
        assert relay(WireEngine(), task, here.ranges())[0].relayed == 500
    assert check_copied(here) == []


def test_a_membership_is_read_from_what_librdkafka_keeps(make_world: MakeWorld) -> None:
    here = make_world(partitions=1)
    assert read_membership(pin_nothing(here)) == Membership(here.group)
    guard = here.guard()
    try:
        found = read_membership(guard.join(lambda: None))
        assert (found.group, found.instance) == (here.group, None)
        assert found.generation >= 1
        assert found.member
    finally:
        guard.leave()
    with pytest.raises(ValueError, match="begins with"):
        read_membership(b"another form")


@pytest.mark.parametrize(
    ("wanted", "properties", "engine", "why"),
    [
        ("auto", PLAIN, WIRE, "whole record batches"),
        ("wire", PLAIN, WIRE, "whole record batches"),
        ("record", PLAIN, RECORD, "as `expand.engine` says"),
        (
            "auto",
            {**PLAIN, "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"},
            RECORD,
            "kafka-python cannot connect with sasl.mechanism OAUTHBEARER",
        ),
    ],
)
def test_an_engine_is_chosen_and_says_why(
    wanted: str, properties: dict[str, str], engine: str, why: str
) -> None:
    assert choose_relay_engine(wanted, properties)[0] == engine
    assert why in choose_relay_engine(wanted, properties)[1]


def test_an_engine_that_cannot_be_had_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    kerberos = {**PLAIN, "security.protocol": "SASL_PLAINTEXT"}
    with pytest.raises(UsageError, match=r"with sasl.mechanism GSSAPI"):
        choose_relay_engine("wire", kerberos)
    monkeypatch.setattr(wire, "find_spec", lambda _: None)
    assert choose_relay_engine("auto", PLAIN)[0] == RECORD
    with pytest.raises(UsageError, match=r"pip install 'backlogctl\[wire\]'"):
        choose_relay_engine("wire", PLAIN)
