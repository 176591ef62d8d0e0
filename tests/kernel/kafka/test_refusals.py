"""A login or an encryption that is refused is said as such, long before a time-out."""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from weakref import WeakSet

import pytest
from confluent_kafka import TopicPartition

from backlogctl.clock import Deadline, utc_now
from backlogctl.errors import ClusterUnreachable, KafkaFailure, Refused
from backlogctl.fanout.relay.commits import find_commits
from backlogctl.kafka.admin import (
    committed_offsets,
    create_topic,
    describe_group_state,
    list_offsets,
    read_metadata,
    read_topic_settings,
)
from backlogctl.kafka.bulk import BulkReader
from backlogctl.kafka.clients import Admin, Properties, make_admin, make_producer
from backlogctl.kafka.commit_log import COMMIT_LOG, LogCondition
from backlogctl.kafka.errors import explain_encryption
from backlogctl.kafka.group_types import read_group_type
from backlogctl.kafka.rights import CLUSTER_NAME, Operation, Resource, Right, read_rights
from backlogctl.kafka.transactions import TransactionFate, abort_transaction, read_open_transactions
from backlogctl.sandbox.secured import Security
from backlogctl_delivery.kafka import CLIENT_LOG, AccessDenied, EncryptionRefused, LoginRefused
from tests.kernel.kafka.test_commit_log import begin_commit, following
from tests.kit.kafka import forward, need_kafka, set_offsets_raw
from tests.kit.recoveries import write_config
from tests.kit.secured import SecuredKafka, start_secured
from tests.kit.shop import call_main
from tests.kit.transactions import leave_open, write_hanging

WRONG = "not-the-password-at-all"
GIVEN = 120.0  # seconds that a call may take; none of them is waited for
SOON = 60.0


def list_all_groups(properties: Properties) -> object:
    with closing(BulkReader(properties, seconds=GIVEN)) as reader:
        return reader.list_groups()


CALLS: dict[str, Callable[[Properties], object]] = {
    "state": lambda p: describe_group_state(p, "service", Deadline(GIVEN)),
    "commits": lambda p: committed_offsets(p, "service", "orders", [0], Deadline(GIVEN)),
    "metadata": lambda p: read_metadata(p, None, Deadline(GIVEN)),
    "offsets": lambda p: list_offsets(p, "orders", [0], "latest", deadline=Deadline(GIVEN)),
    "type": lambda p: read_group_type(p, "service", Deadline(GIVEN)),
    "rights": lambda p: read_rights(
        p, [Right(Resource.TRANSACTIONAL_ID, "x", Operation.WRITE, "write")], Deadline(GIVEN)
    ),
    "all groups": list_all_groups,
}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    with start_secured(tmp_path_factory.mktemp("secured")) as found:
        create_topic(found.properties, "orders", partitions=1)
        set_offsets_raw(found.properties, "order-service", "orders", {0: 2})
        yield found


def fail(call: Callable[[Properties], object], properties: Properties) -> ClusterUnreachable:
    began = time.monotonic()
    with pytest.raises(ClusterUnreachable) as caught:
        call(properties)
    assert time.monotonic() - began < SOON
    assert WRONG not in f"{caught.value} {caught.value!r}"
    return caught.value


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_password_is_a_refused_login(secured: SecuredKafka, name: str) -> None:
    properties = secured.login("admin", WRONG)
    before = list_admins()
    error = fail(CALLS[name], properties)
    assert isinstance(error, LoginRefused)
    assert "refused the login of user admin with SCRAM-SHA-512" in error.message
    assert properties["bootstrap.servers"] in error.message
    assert "invalid credentials" in error.message
    assert "sasl.password" in error.hint
    del error
    assert not list_admins() - before, "it logs in on and on for as long as it is there"


def list_admins() -> WeakSet[Admin]:
    gc.collect()
    # Not isinstance: some objects of other libraries only stand for one that is not there.
    return WeakSet(one for one in gc.get_objects() if issubclass(type(one), Admin))


def test_an_unknown_mechanism_is_said_with_the_known_ones(secured: SecuredKafka) -> None:
    error = fail(CALLS["state"], {**secured.properties, "sasl.mechanism": "PLAIN"})
    assert isinstance(error, LoginRefused)
    assert "with PLAIN" in error.message
    assert "supported mechanisms: SCRAM-SHA-512" in error.message


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate that no broker here has."""
    return Path(Security.make(tmp_path_factory.mktemp("other")).ca)


@pytest.mark.parametrize("name", ["state", "rights"])
def test_a_certificate_of_nobody_known(secured: SecuredKafka, name: str, other: Path) -> None:
    error = fail(CALLS[name], {**secured.properties, "ssl.ca.location": str(other)})
    assert isinstance(error, EncryptionRefused)
    assert "unable to get local issuer certificate" in error.message
    assert str(other) in error.message


@pytest.mark.parametrize("name", ["metadata", "type"])
def test_a_certificate_of_another_host(secured: SecuredKafka, name: str) -> None:
    host, _, port = secured.properties["bootstrap.servers"].partition(":")
    with forward("127.0.0.2", (host, int(port))) as elsewhere:
        error = fail(CALLS[name], {**secured.properties, "bootstrap.servers": elsewhere})
    assert isinstance(error, EncryptionRefused)
    assert "not valid for '127.0.0.2'" in error.message


@pytest.mark.parametrize("name", ["state", "rights"])
def test_a_plain_client_on_a_port_with_tls(secured: SecuredKafka, name: str) -> None:
    address = secured.properties["bootstrap.servers"]
    error = fail(CALLS[name], {"bootstrap.servers": address})
    assert isinstance(error, EncryptionRefused)
    assert f"{address} speaks TLS, and security.protocol is PLAINTEXT" in error.message


def test_a_client_with_tls_on_a_plain_port(secured: SecuredKafka, plain: str) -> None:
    error = fail(CALLS["state"], {**secured.properties, "bootstrap.servers": plain})
    assert isinstance(error, EncryptionRefused)
    assert f"{plain} does not speak TLS, and security.protocol is SASL_SSL" in error.message


@pytest.fixture
def plain(secured: SecuredKafka) -> Iterator[str]:
    """A port that hangs up on what it does not understand, as Kafka's plain one does."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    with server.accept()[0] as one:
                        one.recv(1024)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_right_properties_have_nothing_to_explain(secured: SecuredKafka) -> None:
    address = secured.properties["bootstrap.servers"]
    assert explain_encryption(secured.properties, address, 10.0) == ""
    assert explain_encryption(secured.properties, "127.0.0.1:1,no such host:x", 10.0) == ""
    for call in CALLS.values():
        call(secured.properties)


def test_an_answer_takes_an_old_refusal_back(secured: SecuredKafka) -> None:
    """A broker that let nobody in for a moment is not blamed for what is slow later."""
    admin = make_admin(secured.properties)
    wrong = make_admin(secured.login("admin", WRONG))
    with pytest.raises(LoginRefused):
        read_metadata(wrong, None, Deadline(GIVEN))
    admin.reports(wrong.reports.refusal)  # type: ignore[arg-type]
    assert isinstance(admin.find_refusal("x", "ask"), LoginRefused)
    read_topic_settings(admin, COMMIT_LOG, [], Deadline(GIVEN))
    assert admin.find_refusal("x", "ask") is None


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("gaps",),
        ("plan", "expand", "orders", "--rate", "5"),
        ("hold", "orders", "--for", "1h"),
        ("watch", "--rounds", "1"),
        ("status", "--cluster", "main", "--group", "service"),
    ],
    ids=" ".join,
)
def test_each_command_says_so(
    secured: SecuredKafka, words: tuple[str, ...], tmp_path: Path
) -> None:
    stream = {
        "cluster": "main",
        "topic": "orders",
        "group": "service",
        "consumers": {"launcher": "manual"},
    }
    properties = {**secured.properties, "sasl.password": "${env:KAFKA_PASSWORD}"}
    write_config(tmp_path, clusters={"main": properties}, streams={"orders": stream})
    code, out, err = call_main(words, tmp_path, {"KAFKA_PASSWORD": WRONG})
    assert code == 1
    assert "refused the login of user admin with SCRAM-SHA-512" in err
    assert "no broker" not in err
    assert WRONG not in out + err


def find_relays_commits(properties: Properties) -> object:
    return find_commits(make_admin(properties), "service", "orders", [0], Deadline(GIVEN))


@pytest.mark.parametrize("ask", [CALLS["commits"], find_relays_commits])
def test_a_group_that_may_not_be_described_is_told_as_that(
    secured: SecuredKafka, ask: Callable[[Properties], object]
) -> None:
    allowed = [Right(Resource.TOPIC, "orders", Operation.DESCRIBE, "describe")]
    properties = secured.add_user("watcher", allowed)
    began = time.monotonic()
    with pytest.raises(KafkaFailure, match=r"[Gg]roup authorization failed"):
        ask(properties)
    assert time.monotonic() - began < SOON


# What a login that is taken may not do: what lies open, and the log of commits.


def test_what_may_not_be_asked_is_said(secured: SecuredKafka) -> None:
    topic_read = Right(Resource.TOPIC, "sales", Operation.READ, "")
    every_id = Right(Resource.TRANSACTIONAL_ID, "*", Operation.DESCRIBE, "", asked="anyone")
    write_id = Right(Resource.TRANSACTIONAL_ID, "*", Operation.WRITE, "", asked="anyone")
    alter = Right(Resource.CLUSTER, CLUSTER_NAME, Operation.ALTER, "")
    for name in ("sales", "bills"):
        create_topic(secured.properties, name, partitions=1)
    leave_open(secured.properties, "sales", "left")
    write_hanging(secured.properties, "bills")
    blind = secured.add_user("blind", [Right(Resource.TOPIC, "sales", Operation.DESCRIBE, "")])
    with pytest.raises(AccessDenied, match="open transactions"):
        read_open_transactions(blind, "sales", [0])

    reader = secured.add_user("reader", [topic_read])
    (found,) = read_open_transactions(reader, "sales", [0])
    assert (found.transactional_id, found.fate) == (None, TransactionFate.UNKNOWN)
    with pytest.raises(Refused, match="not known whether its coordinator"):
        abort_transaction(reader, found)

    looker = secured.add_user("looker", [topic_read, every_id])
    (found,) = read_open_transactions(looker, "sales", [0])
    assert (found.transactional_id, found.fate) == ("left", TransactionFate.ONGOING)
    with pytest.raises(AccessDenied) as denied:
        abort_transaction(looker, found)
    assert denied.value.hint == "`Write` on its transactional id must be granted"
    writer = secured.add_user("writer", [topic_read, every_id, write_id])
    abort_transaction(writer, found)

    bills = Right(Resource.TOPIC, "bills", Operation.READ, "")
    weak = secured.add_user("weak", [bills, every_id])
    (hanging,) = read_open_transactions(weak, "bills", [0])
    assert hanging.fate is TransactionFate.HANGING
    with pytest.raises(AccessDenied) as denied:
        abort_transaction(weak, hanging)
    assert denied.value.hint.startswith("`Alter` on the cluster must be granted")
    need_kafka(3, 9)
    strong = secured.add_user("strong", [bills, every_id, alter])
    abort_transaction(strong, hanging)
    assert list_offsets(secured.properties, "bills", [0], "latest", "read_committed") == {0: 6}


LOG_RIGHTS = [
    Right(Resource.TOPIC, COMMIT_LOG, operation, "see each commit")
    for operation in (Operation.DESCRIBE, Operation.READ)
]


@pytest.mark.parametrize("rights", [[], LOG_RIGHTS[:1]])
def test_who_may_not_read_the_log_is_told_and_may_later(
    secured: SecuredKafka, rights: list[Right], unique: str
) -> None:
    properties = secured.add_user(unique, rights)
    with following(properties, "order-service") as follow:
        follow.read_until(LogCondition.DENIED)
        follow.read_until(LogCondition.DENIED)
        assert isinstance(follow.state.error, AccessDenied)
        assert "topic __consumer_offsets" in str(follow.state.error)
        assert follow.state.complete_to is None
        secured.add_user(unique, LOG_RIGHTS)
        set_offsets_raw(secured.properties, "order-service", "orders", {0: 3})
        follow.read_until()
        assert follow.commits("order-service")[-1] == 3
        # It may not list the group.
        assert follow.members("order-service")[-1] is None


def test_holes_that_cannot_be_looked_at_may_be_commits(secured: SecuredKafka, unique: str) -> None:
    """kafka-python, which reads the batches' headers, takes no certificate as text."""
    properties = secured.add_user(unique, LOG_RIGHTS)
    text = {**properties, "ssl.ca.pem": Path(properties["ssl.ca.location"]).read_text()}
    del text["ssl.ca.location"]
    since = utc_now()
    producer = make_producer(secured.properties, {"transactional.id": unique})
    producer.init_transactions(30)
    with (
        following(properties, "order-service", since) as whole,
        following(text, "order-service", since) as blind,
    ):
        begin_commit(producer, secured.properties, TopicPartition("orders", 0, 4, "order-service"))
        producer.commit_transaction(30)
        for follow, is_whole in ((whole, True), (blind, False)):
            follow.read_until()
            assert follow.commits("order-service")[-1] == 4
            assert (follow.state.complete_since == since) is is_whole


def test_what_the_client_repeats_is_logged_once_in_a_while(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [50.0]
    monkeypatch.setattr("backlogctl_delivery.kafka.time.monotonic", lambda: now[0])
    line = "FAIL [backlogctl#producer-%d] [thrd:a:1]: a:1: Connection refused (after %dms in state)"
    for attempt in range(50):
        CLIENT_LOG.error(line, attempt % 3 + 7_000, attempt)
        now[0] += 0.25  # of twelve seconds and a half
    CLIENT_LOG.error("another line")
    told = [record.getMessage() for record in caplog.records]
    assert len([one for one in told if "7000" in one or "7001" in one]) == 2
    assert len(told) == 3
