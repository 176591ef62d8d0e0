"""Logins by OAUTHBEARER: a real issuer of tokens, and Kafka's own check of them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlsplit

import pytest
from pyspark.sql import SparkSession

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError, ConfigurationError
from backlogctl.kafka.admin import create_topic, describe_topic, list_offsets
from backlogctl.kafka.clients import make_admin, make_producer
from backlogctl.kafka.leaders import read_leaders
from backlogctl.kafka.log_dirs import read_log_dirs
from backlogctl.kafka.raw_client import RawClient, translate_properties
from backlogctl.kafka.raw_fetch import ENDLESS, RawFetch, fetch_batches
from backlogctl.kafka.rights import Operation, read_rights
from backlogctl.kafka.tokens import find_tokens
from backlogctl.spark_backfill.spark.kafka_options import make_java_options
from backlogctl.spark_backfill.spark.topic import TopicReader
from backlogctl.values import OffsetRange
from backlogctl.wire import explain_absence
from backlogctl_delivery.kafka import TOKEN_COMMAND, LoginRefused, sign_msk_token
from examples.issuer import Issuer, start_issuer
from tests.kit.kafka import publish
from tests.kit.secured import RIGHTS, TOPIC, SecuredKafka, start_with_tokens, use_both_clients


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with start_issuer() as found:
        yield found


@pytest.fixture(scope="module")
def kafka(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """A connection lives no longer than three seconds without a new login (KIP-368); and a token
    no longer than it says, which Kafka's validator would stretch by half a minute."""
    place = tmp_path_factory.mktemp("tokens")
    strict = {"connections.max.reauth.ms": "3000", "sasl.oauthbearer.clock.skew.seconds": "0"}
    with start_with_tokens(place, issuer, strict) as found:
        create_topic(found.properties, TOPIC, partitions=1)
        yield found


@pytest.fixture(scope="module")
def properties(kafka: SecuredKafka, issuer: Issuer) -> dict[str, str]:
    kafka.add_user("ada", RIGHTS)
    plain = {k: v for k, v in kafka.properties.items() if not k.startswith("sasl.")}
    return {**plain, **issuer.login("ada")}


def test_both_clients_log_in(properties: dict[str, str], issuer: Issuer) -> None:
    use_both_clients(properties)
    assert set(issuer.given) == {"ada"}


@pytest.fixture
def printed(tmp_path: Path, issuer: Issuer) -> Path:
    """What the command prints."""
    place = tmp_path / "token"
    place.write_text(issuer.make_token("ada"))
    return place


def by_command(properties: Mapping[str, str], command: str) -> dict[str, str]:
    rest = {k: v for k, v in properties.items() if not k.startswith("sasl.")}
    return {**rest, "sasl.mechanism": "OAUTHBEARER", TOKEN_COMMAND: command}


@pytest.mark.parametrize("form", ["alone", "json"])
def test_both_clients_log_in_with_a_command(
    properties: dict[str, str], printed: Path, form: str
) -> None:
    if form == "json":
        answer = {"access_token": printed.read_text(), "expires_in": 300, "token_type": "Bearer"}
        printed.write_text(json.dumps(answer))
    own = by_command(properties, f"cat {printed}")
    publish(own, TOPIC, {0: 10})
    end = time.monotonic() + 4  # a connection ends after three without a new login
    while time.monotonic() < end:
        assert describe_topic(make_admin(own), TOPIC).partitions == 1
        seen = read_log_dirs(own, TOPIC, Deadline(30))
        assert (seen.reason, len(seen.brokers or ())) == ("", 1)
        time.sleep(0.3)
    assert read_rights(own, RIGHTS).missing == ()
    assert explain_absence(own) == ""


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("sh -c 'echo a-secret >&2; exit 3'", "it ended with 3"),
        ("echo a secret of two words", "it printed no token"),
        ('echo \'{"error": "a-secret"}\'', "it printed no token"),
        ("true", "it printed no token"),
        ("/no/such/program --key a-secret", "it cannot be run: No such file or directory"),
        ("'", "it printed no token"),
    ],
)
def test_a_command_that_gives_no_token_is_named(
    properties: dict[str, str], command: str, why: str
) -> None:
    own = by_command(properties, command)
    for ask in (make_admin, lambda own: list(fetch_batches(own, TOPIC, [OffsetRange(0, 0, 1)]))):
        with pytest.raises(LoginRefused, match=re.escape(why)) as told:
            ask(own)
        assert "secret" not in str(told.value)


def test_spark_logs_in(spark: SparkSession, properties: dict[str, str]) -> None:
    publish(properties, TOPIC, {0: 10})
    rows = TopicReader(spark, properties, TOPIC).read([OffsetRange(0, 0, 10)]).count()
    assert rows == 10


def test_a_connection_logs_in_again(properties: dict[str, str]) -> None:
    settings, _ = translate_properties(properties)
    assert settings is not None
    with RawClient(settings, Deadline(30)) as client:
        end = time.monotonic() + 7
        while time.monotonic() < end:
            assert read_leaders(client, TOPIC, Deadline(10)) == {0: 1}
            time.sleep(0.2)


def test_a_token_is_kept_for_as_long_as_it_is_good(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("backlogctl.kafka.tokens.time.monotonic", lambda: now[0])
    monkeypatch.setattr(issuer, "seconds", 100.0)
    tokens = find_tokens(issuer.login("grace"))
    assert find_tokens(issuer.login("grace")) is tokens
    first, given = tokens.token(), len(issuer.given)
    now[0] += 79
    assert tokens.token() == first
    assert len(issuer.given) == given
    now[0] += 2
    tokens.token()
    assert len(issuer.given) == given + 1


LIFE = 5.0  # seconds of a token


def test_work_goes_on_while_tokens_expire(
    properties: dict[str, str], issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By each client: one that sends, one that follows the log. The issuer is away for one life."""
    monkeypatch.setattr(issuer, "seconds", LIFE)
    own = {**properties, "sasl.oauthbearer.scope": "short"}  # no token is kept of that
    end = list_offsets(properties, TOPIC, [0], "latest")[0]
    producer = make_producer(own)
    follower = RawFetch(own, TOPIC, [OffsetRange(0, end, ENDLESS)])

    def work(seconds: float, within: float) -> bool:
        """Whether what was sent meanwhile has come, and was read."""
        nonlocal end
        limit = Deadline(seconds)
        while not limit.expired:
            producer.produce(TOPIC, b"value", partition=0)
            end += 1
            time.sleep(0.2)
        limit = Deadline(within)
        is_sent = producer.flush(within) == 0
        read = 0
        while read < end and not limit.expired:
            read = max((one.next_offset for one in follower.read(0.2)), default=read)
        return is_sent and read == end

    with closing(follower):
        given = len(issuer.given)
        for _ in range(3):
            assert work(LIFE, within=60.0)
        assert len(issuer.given) - given >= 2 * 3
        monkeypatch.setattr(issuer, "is_away", True)
        time.sleep(LIFE + 1.0)
        assert not work(0.1, within=1.0)
        monkeypatch.setattr(issuer, "is_away", False)
        assert work(LIFE, within=60.0)


@pytest.mark.parametrize("way", ["secret", "away", "nobody"])
def test_who_gets_no_token_is_told_where(
    properties: dict[str, str], issuer: Issuer, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    login = issuer.login("mallory", "wrong-secret" if way == "secret" else "x")
    if way == "away":
        monkeypatch.setattr(issuer, "is_away", True)
    if way == "nobody":
        login["sasl.oauthbearer.token.endpoint.url"] = "http://127.0.0.1:1/token"
    with pytest.raises(LoginRefused) as told:
        find_tokens(login).token()
    assert "mallory" in str(told.value)
    assert "wrong-secret" not in str(told.value)
    began = time.monotonic()
    with pytest.raises(LoginRefused):
        list(fetch_batches({**properties, **login}, TOPIC, [OffsetRange(0, 0, 1)]))
    assert time.monotonic() - began < 30  # it waits for a minute where work is under way


def test_a_client_that_may_not_is_told_so(
    kafka: SecuredKafka, properties: dict[str, str], issuer: Issuer
) -> None:
    found = read_rights({**properties, **issuer.login("nobody")}, RIGHTS)
    assert {one.operation for one in found.missing} >= {Operation.READ, Operation.WRITE}


def test_other_methods_are_refused_by_name() -> None:
    login = {"bootstrap.servers": "a:1", "security.protocol": "sasl_ssl"}
    login |= {"sasl.mechanism": "OAUTHBEARER"}
    assert translate_properties(login)[1].endswith("without sasl.oauthbearer.method oidc")
    with pytest.raises(ConfigurationError, match="OAUTHBEARER"):
        make_java_options(login)


MSK = "b-1.shop.abc123.c2.kafka.eu-west-1.amazonaws.com:9098"


def test_a_token_of_msk_is_signed_by_the_published_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signature version 4 of a URL, as Amazon's documentation has it; no Amazon was asked."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-ours")
    token, until = sign_msk_token({"bootstrap.servers": MSK})
    assert 800 < until - time.time() <= 900
    url = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    assert (url.scheme, url.netloc) == ("https", "kafka.eu-west-1.amazonaws.com")
    query = dict(parse_qsl(url.query))
    assert query["Action"] == "kafka-cluster:Connect"
    query.pop("User-Agent")  # which is added afterwards
    signature, at = query.pop("X-Amz-Signature"), query["X-Amz-Date"]
    scope = f"{at[:8]}/eu-west-1/kafka-cluster/aws4_request"
    assert query["X-Amz-Credential"] == f"AKIDEXAMPLE/{scope}"
    words = "&".join(f"{quote(k, safe='')}={quote(v, safe='')}" for k, v in sorted(query.items()))
    empty = hashlib.sha256(b"").hexdigest()
    canonical = f"GET\n/\n{words}\nhost:{url.netloc}\n\nhost\n{empty}"
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    key = b"AWS4secret-of-ours"
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    wanted = hmac.digest(key, f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{hashed}".encode(), "sha256")
    assert signature == wanted.hex()


def test_both_clients_log_in_by_msk_tokens(
    properties: dict[str, str], issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a token that this broker takes in the place of Amazon's."""
    plain = {k: v for k, v in properties.items() if not k.startswith("sasl.")}
    login = {**plain, "sasl.mechanism": "AWS_MSK_IAM"}

    def sign(properties: object) -> tuple[str, float]:
        return issuer.make_token("ada"), time.time() + 20

    monkeypatch.setattr("backlogctl_delivery.kafka.sign_msk_token", sign)
    monkeypatch.setattr("backlogctl.kafka.tokens.sign_msk_token", sign)
    publish(login, TOPIC, {0: 10})
    assert describe_topic(make_admin(login), TOPIC).partitions == 1
    assert read_log_dirs(login, TOPIC, Deadline(30)).reason == ""


def test_without_aws_credentials_it_is_said(
    properties: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    plain = {k: v for k, v in properties.items() if not k.startswith("sasl.")}
    login = {**plain, "sasl.mechanism": "AWS_MSK_IAM"}
    with pytest.raises(LoginRefused, match="AWS credentials"):
        list(fetch_batches(login, TOPIC, [OffsetRange(0, 0, 1)]))
    with pytest.raises(BacklogError) as told:
        describe_topic(make_admin(login), TOPIC, Deadline(10))
    assert "AWS credentials" in str(told.value)
    monkeypatch.delenv("AWS_REGION")
    with pytest.raises(ConfigurationError, match="region"):
        sign_msk_token(login)
