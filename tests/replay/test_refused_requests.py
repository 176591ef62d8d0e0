"""Clusters that refuse requests which a tool makes, as managed ones do: what can be known is said,
and what cannot is unknown, with the reason; a proxy refuses before a real broker."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from backlogctl.clock import Deadline
from backlogctl.fanout.relay.guard import find_others
from backlogctl.fanout.retention import RETENTION_MS
from backlogctl.kafka.admin import (
    GroupState,
    alter_topic_config,
    describe_group_state,
    read_group_state,
    set_group_offsets,
)
from backlogctl.kafka.capabilities import CAPABILITIES
from backlogctl.kafka.clients import make_admin
from backlogctl.kafka.errors import RequestMissing
from backlogctl.kafka.topics import read_topic_overrides
from backlogctl.sandbox.embedded import EmbeddedKafka
from tests.conftest import MakeTopic
from tests.kit.kafka import join, leave_at, move_log_start, publish, set_offsets_raw
from tests.kit.refusing import (
    CLUSTER_DENIED,
    GROUP_DENIED,
    ID_DENIED,
    TOPIC_DENIED,
    UNSUPPORTED,
    Api,
    Refusing,
    RefusingKafka,
    start_refusing,
)
from tests.kit.shop import Said, call_main

# A question may take 60 s where a broker hangs up at each try; then it is said.
SOON = 70.0
LOOKING = [
    ("status", "orders"),
    ("watch", "--rounds", "1"),
    ("doctor", "orders"),
    ("gaps",),
    ("audit", "producers", "orders"),
    ("transactions", "list", "orders"),
]
PLANS = [
    ("plan", "expand", "orders", "--rate", "5"),
    ("plan", "offload", "orders", "--allow", "disk"),
    ("plan", "redrive", "orders", "--from", "log", "--all"),
]
CODES = {
    Api.DESCRIBE_GROUPS: GROUP_DENIED,
    Api.DESCRIBE_CONFIGS: TOPIC_DENIED,
    Api.INCREMENTAL_ALTER_CONFIGS: TOPIC_DENIED,
    Api.DESCRIBE_PRODUCERS: TOPIC_DENIED,
    Api.OFFSET_FOR_LEADER_EPOCH: TOPIC_DENIED,
    Api.END_TXN: ID_DENIED,
    Api.INIT_PRODUCER_ID: ID_DENIED,
    Api.DESCRIBE_TRANSACTIONS: ID_DENIED,
}


@pytest.fixture(scope="module")
def proxy(kafka: EmbeddedKafka) -> Iterator[RefusingKafka]:
    with start_refusing(kafka.bootstrap) as found:
        yield found


@pytest.fixture
def behind(
    proxy: RefusingKafka, properties: dict[str, str], topic: MakeTopic, group: str, tmp_path: Path
) -> Iterator[Path]:
    """A group that is behind, and of whose messages three are deleted; the proxy is its cluster."""
    name = topic(2)
    publish(properties, name, {0: 20, 1: 20})
    leave_at(properties, group, name, {0: 2, 1: 2})
    move_log_start(properties, name, {0: 5})
    write_config(tmp_path, proxy, name, group)
    yield tmp_path
    proxy.refusals.refuse(Refusing.REFUSED, ())


def write_config(directory: Path, proxy: RefusingKafka, topic: str, group: str) -> None:
    consumers = {"launcher": "manual", "replicas": 1}
    stream = {"cluster": "main", "topic": topic, "group": group, "consumers": consumers}
    document = {
        "ledger": f"sqlite:///{directory}/ledger.db",
        "staging": {"dir": f"{directory}/staging"},
        "clusters": {"main": proxy.properties},
        "streams": {"orders": stream},
    }
    (directory / "backlog.yaml").write_text(json.dumps(document))


def call(directory: Path, *words: str) -> Said:
    said = Said(*call_main(words, directory, {}))
    assert "Traceback" not in said.out + said.err
    assert "internal error" not in said.out + said.err
    return said


def flatten(said: Said) -> str:
    return " ".join((said.out + said.err).replace("│", " ").split())


@pytest.mark.parametrize("how", [Refusing.REFUSED, Refusing.MISSING])
def test_fault_181_a_group_is_known_where_groups_cannot_be_listed(
    proxy: RefusingKafka, behind: Path, how: Refusing
) -> None:
    proxy.refusals.refuse(how, [Api.LIST_GROUPS], CLUSTER_DENIED)
    assert "3 messages lost at most" in flatten(call(behind, "status", "orders"))
    for words in LOOKING[1:]:
        said = call(behind, *words)
        assert said.code == (1 if words[0] == "doctor" else 0), said
    assert "the type of group" in flatten(call(behind, "doctor", "orders"))
    for words in PLANS:  # it may be a share group's or a streams group's topic
        assert "could not list the groups" in flatten(call(behind, *words))


def test_fault_181_a_group_that_nobody_joined_is_not_taken_for_another(
    proxy: RefusingKafka, properties: dict[str, str], behind: Path, topic: MakeTopic, group: str
) -> None:
    name, alone = topic(1), f"{group}-alone"
    publish(properties, name, {0: 9})
    set_offsets_raw(properties, alone, name, {0: 2})
    write_config(behind, proxy, name, alone)
    listed = json.loads(call(behind, "status", "orders", "--json").out)
    proxy.refusals.refuse(Refusing.REFUSED, [Api.LIST_GROUPS])
    described = json.loads(call(behind, "status", "orders", "--json").out)
    (before,), (after,) = (one["streams"] for one in (listed, described))
    assert before["group_state"] == after["group_state"] == "simple"


def test_fault_181_members_that_cannot_be_seen_are_not_taken_for_nobody(
    proxy: RefusingKafka, properties: dict[str, str], behind: Path, topic: MakeTopic, group: str
) -> None:
    """Of the newer protocol DescribeGroups says that there is no such group."""
    joined, admin = f"{group}-newer", make_admin(proxy.properties)
    member = join(properties, joined, topic(1), group_protocol="consumer")
    proxy.refusals.refuse(Refusing.MISSING, [Api.CONSUMER_GROUP_DESCRIBE])
    assert read_group_state(admin, joined).is_active
    with pytest.raises(RequestMissing):
        find_others(proxy.properties, joined, Deadline(20.0))
    nobody, name = f"{group}-nobody", topic(1)
    assert describe_group_state(admin, nobody) == GroupState("dead", ())
    set_group_offsets(admin, nobody, name, {0: 0})
    proxy.refusals.refuse(Refusing.MISSING, [Api.CONSUMER_GROUP_DESCRIBE, Api.LIST_GROUPS])
    with pytest.raises(RequestMissing):
        describe_group_state(make_admin(proxy.properties), f"{group}-never")
    member.close()


@pytest.mark.parametrize(
    ("plan", "api", "request_name"),
    [
        (PLANS[0], Api.END_TXN, "EndTxn"),
        (PLANS[2], Api.INIT_PRODUCER_ID, "InitProducerId"),
        (PLANS[0], Api.CREATE_TOPICS, "CreateTopics"),
        (PLANS[1], Api.DELETE_RECORDS, "DeleteRecords"),
        (PLANS[0], Api.DELETE_TOPICS, "DeleteTopics"),
        (PLANS[0], Api.TXN_OFFSET_COMMIT, "TxnOffsetCommit"),
        (PLANS[2], Api.ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxn"),
    ],
)
def test_fault_182_what_needs_a_request_that_is_not_there_is_not_planned(
    proxy: RefusingKafka, behind: Path, plan: tuple[str, ...], api: Api, request_name: str
) -> None:
    assert call(behind, *plan).code == 0
    behind.joinpath("ledger.db").unlink()
    proxy.refusals.refuse(Refusing.MISSING, [api])
    said = call(behind, *plan)
    assert said.code == 5
    assert f"the cluster does not take what this needs: {request_name} (" in flatten(said)


@pytest.mark.parametrize("how", Refusing)
def test_fault_182_what_has_to_raise_the_retention_is_refused_where_it_cannot_be(
    proxy: RefusingKafka, properties: dict[str, str], behind: Path, how: Refusing
) -> None:
    """Nothing is planned or held then; what need not raise it is planned. An offload whose segments
    do not end is, where its space need not be freed."""
    topic = json.loads((behind / "backlog.yaml").read_text())["streams"]["orders"]["topic"]
    proxy.refusals.refuse(how, [Api.INCREMENTAL_ALTER_CONFIGS], TOPIC_DENIED)
    assert call(behind, *PLANS[0]).code == 0
    behind.joinpath("ledger.db").unlink()
    alter_topic_config(properties, topic, {RETENTION_MS: "300000"})
    said = call(behind, *PLANS[0])
    assert said.code == (1 if how is Refusing.CLOSED else 5)
    if how is not Refusing.CLOSED:  # may be there when it is asked again
        assert "so it has to be raised, and cannot be: could not change" in flatten(said)
    assert call(behind, "recoveries", "--json").document["recoveries"] == []
    held = call(behind, "hold", "orders", "--for", "1h")
    assert held.code == 1
    assert "could not change its settings" in flatten(held)
    assert read_topic_overrides(properties, topic, [RETENTION_MS]) == {RETENTION_MS: "300000"}
    offload = call(behind, *PLANS[1])
    assert offload.code == 5
    assert "segment.ms cannot be lowered" in flatten(offload)
    assert call(behind, *PLANS[1], "--allow", "frees-nothing").code == 0
    proxy.refusals.refuse(Refusing.REFUSED, ())
    assert call(behind, "hold", "orders", "--release").code == 0
    assert call(behind, *PLANS[0]).code == 0


def test_fault_182_what_is_not_there_is_not_to_be_tried_again(
    proxy: RefusingKafka, behind: Path
) -> None:
    missing = [Api.DESCRIBE_PRODUCERS, Api.DESCRIBE_CONFIGS, Api.DESCRIBE_GROUPS]
    proxy.refusals.refuse(Refusing.MISSING, missing)
    for words in (LOOKING[-1], PLANS[0]):
        said = flatten(call(behind, *words))
        assert "these brokers do not take that request" in said
        assert "try again" not in said


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (Refusing.MISSING, "the broker that was asked does not have it"),
        (
            Refusing.REFUSED,
            "refused: ClusterAuthorizationFailedError; a right may be missing (`backlogctl acl`)",
        ),
        (Refusing.CLOSED, "a broker that was asked closed the connection"),
    ],
)
def test_the_doctor_names_what_the_cluster_refuses(
    proxy: RefusingKafka, behind: Path, how: Refusing, why: str
) -> None:
    """And what is missing for that; a plan needs groups, and goes on without disks."""
    proxy.refusals.refuse(how, [Api.LIST_GROUPS, Api.DESCRIBE_LOG_DIRS])
    document = call(behind, "doctor", "orders", "--json").document
    (tool,) = (one for one in document["examinations"] if one["about"] == "tool")
    found = {(f["level"], f["found"]) for f in tool["findings"] if f["check"] == "requests"}
    assert found == {
        (
            "stops",
            f"ListGroups: {why}; types of groups and other readers are unknown, which stops "
            "expand, offload, redrive",
        ),
        ("unknown", f"DescribeLogDirs: {why}; whether the brokers' disks have room is unknown"),
    }
    (requests,) = tool["requests"].values()
    state = "not there" if how is Refusing.MISSING else "refused"
    assert {name for name, one in requests.items() if one == state} == {
        "ListGroups",
        "DescribeLogDirs",
    }
    assert requests["EndTxn"] == "named"
    proxy.refusals.refuse(how, ())
    whole = flatten(call(behind, "doctor", "orders"))
    every = len(CAPABILITIES)
    assert f"main: {every} of {every} named by one broker, 2 asked and answered" in whole


# As docs/clusters.md names them, by the services' own pages.
_NEWER_GROUPS = {Api.CONSUMER_GROUP_HEARTBEAT, Api.CONSUMER_GROUP_DESCRIBE}
SERVICES = {
    "StreamNative Ursa": {
        *_NEWER_GROUPS,
        Api.ADD_PARTITIONS_TO_TXN,
        Api.ADD_OFFSETS_TO_TXN,
        Api.WRITE_TXN_MARKERS,
        Api.OFFSET_FOR_LEADER_EPOCH,
        Api.END_TXN,
        Api.DESCRIBE_ACLS,
        Api.DESCRIBE_LOG_DIRS,
        Api.DESCRIBE_CLIENT_QUOTAS,
        Api.DESCRIBE_QUORUM,
        Api.DESCRIBE_PRODUCERS,
        Api.DESCRIBE_TRANSACTIONS,
        Api.LIST_TRANSACTIONS,
    },
    "WarpStream": {
        *_NEWER_GROUPS,
        Api.DELETE_RECORDS,
        Api.OFFSET_FOR_LEADER_EPOCH,
        Api.WRITE_TXN_MARKERS,
        Api.DESCRIBE_LOG_DIRS,
        Api.INCREMENTAL_ALTER_CONFIGS,
        Api.DESCRIBE_CLIENT_QUOTAS,
        Api.DESCRIBE_QUORUM,
        Api.DESCRIBE_PRODUCERS,
    },
    "Redpanda": {*_NEWER_GROUPS, Api.WRITE_TXN_MARKERS, Api.DESCRIBE_QUORUM},
    "Redpanda 23.1": {Api.DELETE_RECORDS},
}


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_is_looked_at_and_planned_for(
    proxy: RefusingKafka, behind: Path, service: str
) -> None:
    """What it refuses is named, and only that; its losses are told; what it stops is not planned,
    and everything else is."""
    proxy.refusals.refuse(Refusing.MISSING, SERVICES[service])
    assert "3 messages lost at most" in flatten(call(behind, "status", "orders"))
    doctor = flatten(call(behind, "doctor", "orders"))
    missed = {
        one
        for one in CAPABILITIES
        if one.key in SERVICES[service] and one.beside not in SERVICES[service]
    }
    for capability in CAPABILITIES:
        is_named = f"{capability.request}: the broker that was asked does not have it" in doctor
        assert is_named is (capability in missed), capability
    # A plan is made where the retention cannot be raised, and need not be.
    stopped = {
        job for one in missed if one.key != Api.INCREMENTAL_ALTER_CONFIGS for job in one.jobs
    }
    for plan in PLANS:
        behind.joinpath("ledger.db").unlink(missing_ok=True)
        said = call(behind, *plan)
        assert said.code == (5 if plan[1] in stopped else 0), said


# Only a run sends them.
_OF_RUNS = {
    Api.DELETE_TOPICS,
    Api.ADD_PARTITIONS_TO_TXN,
    Api.ADD_OFFSETS_TO_TXN,
    Api.WRITE_TXN_MARKERS,
    Api.TXN_OFFSET_COMMIT,
    Api.DELETE_GROUPS,
    Api.CONSUMER_GROUP_HEARTBEAT,
}


@pytest.mark.parametrize("how", Refusing)
def test_no_command_crashes_or_hides_a_loss(
    proxy: RefusingKafka, behind: Path, how: Refusing
) -> None:
    """Whichever request is answered so."""
    whole = "3 messages lost at most"
    assert whole in flatten(call(behind, "status", "orders"))
    for api in [api for api in Api if api not in _OF_RUNS]:
        if (api, how) == (Api.CONSUMER_GROUP_DESCRIBE, Refusing.REFUSED):
            continue  # kafka-python cannot make its answer
        proxy.refusals.refuse(how, [api], CODES.get(api, CLUSTER_DENIED))
        for words in (*LOOKING, *PLANS[:2]):
            began = time.monotonic()
            said = call(behind, *words)
            what = f"{api.name} {how}: {words}: {said}"
            assert time.monotonic() - began < SOON, what
            assert said.code in (0, 1, 2, 5), what
            if said.code and words[0] != "doctor":
                assert "error: " in said.err, what
            elif words[0] == "status":
                assert whole in flatten(said), what


def test_a_refusal_by_an_unsupported_version(proxy: RefusingKafka, behind: Path) -> None:
    proxy.refusals.refuse(Refusing.REFUSED, [Api.LIST_GROUPS], UNSUPPORTED)
    assert "3 messages lost at most" in flatten(call(behind, "status", "orders"))
