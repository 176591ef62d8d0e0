"""Secrets come by reference only, and no text ever shows one. `outboxes` and look-back."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from backlogctl.config import (
    Cluster,
    Config,
    Source,
    Stream,
    StreamSource,
    load_config,
    mask_secrets,
    render_template,
)
from backlogctl.config.references import FindConnection
from backlogctl.config.root import read_outline
from backlogctl.config.streams import expand_outbox
from backlogctl.errors import BacklogError, ConfigurationError
from backlogctl.replay.engine.guards import fingerprint_stream
from backlogctl.replay.engine.plan import find_changes
from backlogctl.replay.kinds.rebuild.planning import FINGERPRINT
from backlogctl_delivery import stamps
from tests.kernel.config_texts import (
    BASE,
    ENV,
    SECRETS,
    load,
    refuse,
    with_property,
    with_section,
    with_stream,
)

# `${airflow:CONNECTION.FIELD}`: looked up by whoever reads the file for Airflow, and nobody else.

PASSWORD = "${airflow:shop.password}"


def load_airflow(known: Mapping[str, str] | None, old: str = "", new: str = "") -> Config:
    """The template with the shop's password from Airflow, and one piece replaced."""
    text = render_template().replace("${env:SHOP_PASSWORD}", PASSWORD)
    assert old in text
    text = text.replace(old, new, 1)
    return Config.from_text(text, BASE, {}, find_connection=None if known is None else find(known))


def find(known: Mapping[str, str]) -> FindConnection:
    def look_up(name: str) -> str:
        if name not in known:
            raise LookupError(f"Airflow has no connection {name.partition('.')[0]}: add it")
        return known[name]

    return look_up


def refuse_airflow(known: Mapping[str, str] | None, old: str = "", new: str = "") -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_airflow(known, old, new)
    return str(caught.value)


@given(SECRETS)
@settings(max_examples=10)  # every one of them is masked in all texts of this process
def test_fault_59_a_connections_password_is_masked(secret: str) -> None:
    config = load_airflow({"shop.password": secret}, *with_property(f"sasl.password: {PASSWORD}"))
    url = config.sources["shop"].reveal_url()
    assert unquote(url.partition("backlog_reader:")[2].rpartition("@localhost")[0]) == secret
    assert config.clusters["main"].client_properties()["sasl.password"] == secret
    for text in (secret, url, f"failed: {secret!r}"):
        assert secret not in mask_secrets(text)
        assert secret not in config.mask_secrets(text)
    assert secret not in repr(config)


def test_host_port_and_database_are_no_secrets() -> None:
    known = {"password": "s3cr3t", "host": "db.example", "port": "5433", "schema": "sold"}
    config = load_airflow(
        {f"shop.{name}": value for name, value in known.items()},
        "localhost/shop",
        "${airflow:shop.host}:${airflow:shop.port}/${airflow:shop.schema}",
    )
    assert "@db.example:5433/sold" in config.sources["shop"].reveal_url()
    shown = config.mask_secrets("db.example:5433/sold does not answer s3cr3t")
    assert shown == "db.example:5433/sold does not answer ***"


def test_a_value_may_be_made_of_several_and_is_not_followed() -> None:
    known = {"shop.password": "${env:HOME}", "kafka.host": "broker", "kafka.port": "9093"}
    servers = "bootstrap.servers: localhost:9092"
    config = load_airflow(
        known, servers, "bootstrap.servers: '${airflow:kafka.host}:${airflow:kafka.port}'"
    )
    properties = config.clusters["main"].client_properties()
    assert properties["bootstrap.servers"] == "broker:9093"
    assert "%24%7Benv%3AHOME%7D@" in config.sources["shop"].reveal_url()


def test_in_the_shell_it_is_refused_by_its_key() -> None:
    said = refuse_airflow(None)
    assert "sources.shop.url" in said
    assert "known to Airflow only" in said
    assert "${env:NAME}" in said


def test_what_is_missing_is_told_with_its_key_and_what_to_do() -> None:
    said = refuse_airflow({})
    assert "sources.shop.url" in said
    assert "Airflow has no connection shop: add it" in said
    assert "field shop.password is empty" in refuse_airflow({"shop.password": ""})


@pytest.mark.parametrize("text", ["${airflow:}", "${airflow:shop", "${Airflow:shop.password}"])
def test_what_is_not_written_as_a_reference_is_refused(text: str) -> None:
    assert "a reference is written" in refuse_airflow({"shop.password": "x"}, PASSWORD, text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        with_property("sasl.password: hunter2hunter2"),
        with_property("ssl.key.password: hunter2hunter2"),
        with_property("sasl.oauthbearer.client.secret: hunter2hunter2"),
        with_property("sasl.password: hunter2hunter2${env:SHOP_PASSWORD}"),
        with_property('ssl.certificate.pem: "-----BEGIN PRIVATE KEY-----hunter2hunter2"'),
        with_property("client.id: http://me:hunter2hunter2@host/"),
        ("${env:SHOP_PASSWORD}", "hunter2hunter2"),
        ("${env:SHOP_PASSWORD}@localhost/shop", "@localhost/shop?password=hunter2hunter2"),
        ("ledger: sqlite:///backlog.db", "ledger: postgresql://a:hunter2hunter2@host/x"),
    ],
)
def test_fault_59_a_password_written_into_the_file_is_refused(old: str, new: str) -> None:
    said = refuse(old, new)
    assert "${env:NAME}" in said
    assert "hunter2" not in said


def test_a_missing_reference_names_the_key(tmp_path: Path) -> None:
    said = refuse("${env:SHOP_PASSWORD}", "${env:NOT_SET}")
    assert "sources.shop.url" in said
    assert "NOT_SET is not set" in said
    assert "there is no file" in refuse("${env:SHOP_PASSWORD}", "${file:nowhere}")
    assert "is written ${env:NAME}" in refuse("${env:SHOP_PASSWORD}", "${vault:x}")
    (tmp_path / "broken").write_bytes(b"\xff\xfe")
    (tmp_path / "empty").write_text("\n")
    for name in ("broken", "empty"):
        assert "UTF-8" in refuse("${env:SHOP_PASSWORD}", f"${{file:{tmp_path / name}}}")


def test_a_file_reference_is_relative_to_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("p@ss:w/ord%\n")
    text = render_template().replace("${env:SHOP_PASSWORD}", "${file:password}")
    (tmp_path / "backlog.yaml").write_text(text)
    config = load_config(tmp_path / "backlog.yaml", {})
    # Percent-encoded: without that, the password's own `@` would end it.
    assert "backlog_reader:p%40ss%3Aw%2Ford%25@localhost" in config.sources["shop"].reveal_url()


def test_an_empty_environment_is_not_the_processs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "from-the-process")
    assert "is not set" in refuse("", "", {})


def test_references_are_not_taken_where_they_would_be_shown() -> None:
    assert "SQL" in refuse("key: order_id  ", 'key: {sql: "${env:SHOP_PASSWORD}"}  ')
    assert "Spark shows" in refuse(
        *with_section('spark: {conf: {spark.driver.memory: "${env:SHOP_PASSWORD}"}}')
    )


@given(SECRETS)
@settings(max_examples=20)  # as above: the more, the slower each
def test_fault_59_a_secret_is_in_no_text_of_the_configuration(secret: str) -> None:
    config = load(
        *with_property(
            "security.protocol: SASL_SSL\n    sasl.mechanism: PLAIN\n    "
            "sasl.password: ${env:KAFKA}"
        ),
        env={"SHOP_PASSWORD": secret, "KAFKA": secret},
    )
    assert config.clusters["main"].client_properties()["sasl.password"] == secret
    encoded = quote(secret, safe="")
    assert encoded in config.sources["shop"].reveal_url()
    dumped = json.dumps(config.model_dump(mode="json"))
    plan = json.dumps(config.stream("orders").fingerprint())
    for text in (repr(config), str(config), repr(config.model_dump()), dumped, plan):
        assert "S3~" not in text
        assert encoded not in text
    failure = f"could not connect with {secret!r}, {secret}, {encoded} or {json.dumps(secret)}"
    assert "S3~" not in config.mask_secrets(failure)
    assert "S3~" not in mask_secrets(failure)


BROKEN = st.sampled_from(
    [
        ("    timezone: UTC", "    timezone: ${env:X}"),
        ("      margin: 10m", "      margin: ${env:X}"),
        ("    isolation: read_committed", "    isolation: ${env:X}"),
        ("    topic: orders", "    topic: ${env:X}\n    nonsense: 1"),
        ("    cluster: main", "    cluster: ${env:X}"),
        ("    url: postgresql+psycopg://", "    url: ${env:X}://"),
        ("ledger: sqlite:///backlog.db", "ledger: ${env:X}"),
        ("  keep: 30d", "  keep: [${env:X}]"),
        ("        message: key ", "        message: ${env:X} "),
        ("      primary_key: order_id", "      primary_key: {a: '${env:X}'}"),
        with_property("sasl.mechanism: ${env:X}"),
        with_property("sasl.pasword: ${env:X}"),
        with_stream("limits: {max_messages: '${env:X}'}"),
        with_section("watch: '${env:X}'"),
    ]
)


@given(BROKEN, SECRETS)
def test_fault_59_a_secret_is_in_no_error(change: tuple[str, str], secret: str) -> None:
    with pytest.raises(BacklogError) as caught:
        load(*change, env={**ENV, "X": secret})
    error: BaseException | None = caught.value
    while error is not None:  # what a traceback would print
        assert "S3~" not in f"{error} {error!r}"
        assert quote(secret, safe="") not in str(error)
        error = error.__cause__ or error.__context__


@given(SECRETS)
def test_fault_59_pydantics_own_errors_hide_the_value(secret: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Source.model_validate({"url": f"x{secret}", "timezone": secret})
    assert "S3~" not in str(caught.value)
    with pytest.raises(ValidationError) as caught:
        Cluster.model_validate({"sasl.password": secret, "nonsense": secret})
    assert "S3~" not in str(caught.value)


def test_a_password_that_is_the_databases_name_is_masked_all_the_same() -> None:
    config = load(env={"SHOP_PASSWORD": "shop"})
    assert config.mask_secrets("password shop") == "password ***"


def test_a_configuration_pickles_and_still_masks() -> None:
    config = pickle.loads(pickle.dumps(load()))
    assert config == load()
    assert config.mask_secrets("s3cr3t-of-shop") == "***"


def test_fault_59_every_kind_of_secret_is_masked_by_itself() -> None:
    url = "url: postgresql+psycopg://${env:USER_NAME}:${env:SHOP_PASSWORD}@"
    other = "clusters: {c: {bootstrap.servers: h, ssl.key.password: '${env:KEY}'}}"
    text = f"{other}\nsources:\n  other:\n    {url}db/x\n"
    env = {"USER_NAME": "user-by-reference", "SHOP_PASSWORD": "of-shop", "KEY": "of-the-key"}
    config = Config.from_text(text, BASE, env)
    for secret in ("user-by-reference", "of-shop", "of-the-key"):
        assert config.mask_secrets(f"x {secret} y") == "x *** y"
        assert mask_secrets(f"x {secret} y") == "x *** y"


SECRET = "s3cr3t-of-billing"
BILLING = """\
  billing:
    url: mariadb://app:${env:BILLING_PASSWORD}@db.example/billing
streams:
"""


def with_outboxes(text: str) -> tuple[str, str]:
    return with_section(f"outboxes: {text}\n")


def test_what_is_not_said_has_a_default() -> None:
    outbox = load(*with_outboxes("{shop: {cluster: main}}")).outboxes["shop"]
    assert (outbox.partitioner, outbox.keep, outbox.listen) == ("murmur2", None, None)
    assert (outbox.late, outbox.lease) == (timedelta(minutes=10), timedelta(seconds=60))
    assert load().outboxes == {}


def test_fault_62_an_unknown_source_or_cluster_names_the_nearest() -> None:
    said = refuse(*with_outboxes("{shpo: {cluster: main}}"))
    assert "outboxes.shpo" in said
    assert "unknown source; the nearest known source is `shop`" in said
    said = refuse(*with_outboxes("{shop: {cluster: mian}}"))
    assert "outboxes.shop.cluster" in said
    assert "unknown cluster; the nearest known cluster is `main`" in said
    said = refuse(*with_outboxes("{shop: {cluster: main, kep: 7d}}"))
    assert "the nearest known key is `keep`" in said


@pytest.mark.parametrize("key", ["late", "keep", "lease"])
def test_no_duration_is_zero(key: str) -> None:
    said = refuse(*with_outboxes(f"{{shop: {{cluster: main, {key}: 0s}}}}"))
    assert f"outboxes.shop.{key}" in said


@pytest.mark.parametrize("kind", ["mariadb", "mysql", "mysql+pymysql", "mariadb+pymysql"])
def test_fault_59_an_outbox_may_be_where_no_stream_is_rebuilt_from(kind: str) -> None:
    env = {"SHOP_PASSWORD": "unused-here", "BILLING_PASSWORD": SECRET}
    config = load("streams:\n", BILLING.replace("mariadb", kind, 1), env)
    assert SECRET in config.sources["billing"].reveal_url()
    for mask in (config.mask_secrets, mask_secrets):
        assert SECRET not in mask(f"could not log in with {SECRET}")
    assert SECRET not in repr(config)


def test_a_stream_is_rebuilt_from_such_a_database_too() -> None:
    text = render_template()
    for old, new in (
        ("streams:\n", BILLING),
        ("      database: shop\n", "      database: billing\n"),
    ):
        assert old in text
        text = text.replace(old, new, 1)
    config = Config.from_text(text, BASE, {"SHOP_PASSWORD": "u", "BILLING_PASSWORD": SECRET})
    source = config.stream("orders").source
    assert source is not None
    assert source.database == "billing"


# `source: {outbox: NAME}` is a source as any other; what follows from it may not stand beside it.

TEXT = """
clusters: {main: {bootstrap.servers: "localhost:9092"}}
sources: {shop: {url: "sqlite:///shop.db"}}
streams:
  orders:
    cluster: main
    topic: orders
    group: service
    source: {outbox: shop}
"""
BESIDE = """{outbox: shop, margin: 1m, edge: include,
      consumed: {database: shop, table: handled, column: message_id}}"""


def load_stream(text: str = TEXT) -> Stream:
    return Config.from_text(text).stream("orders")


def source_of(stream: Stream) -> StreamSource:
    assert stream.source is not None
    return stream.source


def test_all_else_follows() -> None:
    source = source_of(load_stream())
    assert (source.database, source.table, source.mutable) == ("shop", "backlog_outbox", False)
    assert source.where == {"topic": "orders", "state": "sent"}
    assert source.identity.header == stamps.EVENT_ID
    # Written by the sender, not by a recovery: it may be named.
    assert source.message.headers == {stamps.EVENT_ID: "message_id"}
    assert source.drift == (timedelta(0), timedelta(minutes=10))


def test_evidence_edge_and_margin_may_stand_beside_it() -> None:
    source = source_of(load_stream(TEXT.replace("{outbox: shop}", BESIDE)))
    assert source.consumed is not None
    assert (source.consumed.table, source.edge) == ("handled", "include")
    assert source.margin == timedelta(minutes=1)


def test_what_is_ignored_of_its_messages_may_stand_beside_it() -> None:
    given = "{outbox: shop, message: {ignore_headers: [request-*]}}"
    message = source_of(load_stream(TEXT.replace("{outbox: shop}", given))).message
    assert message.ignore_headers == ("request-*",)
    assert message.model_copy(update={"ignore_headers": ()}) == source_of(load_stream()).message


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "{outbox: shop}",
            "{outbox: shop, message: {ignore_headers: [a], key: b}}",
            "source.message (line 9): follows from",
        ),
        ("{outbox: shop}", "{outbox: shop, table: t}", "source.table (line 9): follows from"),
        ("{outbox: shop}", "{outbox: shop, message: {}}", "source.message (line 9): follows from"),
        ("{outbox: shop}", "{outbox: shop, stale: events}", "source.stale (line 9): follows from"),
        ("{outbox: shop}", "{outbox: shp}", "source.outbox (line 9): unknown source; the nearest"),
        ("{outbox: shop}", "{outbox: }", "source.outbox (line 9): must be a name under"),
        ("{outbox: shop}", "{outbox: {database: shop}}", "source.outbox (line 9): must be a name"),
        ("{outbox: shop}", "{outbox: 'a b'}", "source.outbox (line 9): must be 1 to 249"),
        ("{outbox: shop}", "{outbocks: shop}", "the nearest known key is `outbox`"),
        (
            "{outbox: shop}",
            "{outbox: shop, margin: 5}",
            "source.margin (line 9): must be a duration",
        ),
        ("topic: orders", "topic: 'no topic'", "orders.topic (line 7): is not a Kafka topic name"),
        ("topic: orders", "topic: [orders]", "orders.topic (line 7): must be text"),
    ],
)
def test_what_is_wrong_is_named_where_it_stands(old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load_stream(TEXT.replace(old, new))
    assert said in str(refused.value)


def test_written_out_it_is_the_same_source() -> None:
    """So that nothing else knows of it, and a plan stays as it is."""
    stream = load_stream()
    written = dict(expand_outbox("orders", {"outbox": "shop"}))
    del written["outbox"]
    data: dict[str, Any] = {**stream.model_dump(), "source": written}
    other = Stream.model_validate(data)
    assert fingerprint_stream(other, FINGERPRINT) == fingerprint_stream(stream, FINGERPRINT)
    assert (
        find_changes(
            fingerprint_stream(stream, FINGERPRINT), fingerprint_stream(other, FINGERPRINT)
        )
        == []
    )
    assert "outbox" not in fingerprint_stream(stream, FINGERPRINT)["source"]
    assert source_of(Stream.model_validate(stream.model_dump())).table == "backlog_outbox"


def test_plans_of_other_sources_stay_as_they_are() -> None:
    """The keys that an outbox needs change nothing where they are not set."""
    text = TEXT.replace(
        "{outbox: shop}",
        "{database: shop, table: t, primary_key: id, time_column: at, message: {key: id, "
        "value: {json: id}}, identity: {row: id, message: key}}",
    )
    now = fingerprint_stream(load_stream(text), FINGERPRINT)
    planned = fingerprint_stream(load_stream(text), FINGERPRINT)
    for key in ("where", "time_unit", "sent_time"):
        del planned["source"][key]
    for key in ("tombstones", "header_list", "partition", "ignore_headers", "ignore_fields"):
        del planned["source"]["message"][key]
    assert find_changes(planned, now) == []


@pytest.mark.parametrize("value", ["7.5", "null", "[a]", "{b: 1}"])
def test_rows_are_chosen_by_text_numbers_and_booleans(value: str) -> None:
    text = TEXT.replace(
        "{outbox: shop}",
        "{database: shop, table: t, primary_key: id, time_column: at, where: {a: "
        + value
        + "}, message: {key: id, value: {json: id}}, identity: {row: id, message: key}}",
    )
    with pytest.raises(ConfigurationError) as refused:
        load_stream(text)
    assert "where.a (line 9): must be text, a whole number, true or false" in str(refused.value)


def test_values_keep_their_kind() -> None:
    section = expand_outbox("orders", {"outbox": "shop"})
    where = {"a": True, "b": 1, "c": "1", "d": False, "e": 0}
    source = StreamSource.model_validate({**section, "where": where})
    assert [(name, type(value)) for name, value in source.where.items()] == [
        (name, type(value)) for name, value in where.items()
    ]
    assert source.where == where


def test_a_row_that_changes_has_no_time_of_sending() -> None:
    section = expand_outbox("orders", {"outbox": "shop"})
    with pytest.raises(ValueError, match="needs `mutable: false`"):
        StreamSource.model_validate({**section, "mutable": True})


def test_a_scheduler_sees_that_it_can_be_rebuilt(tmp_path: Path) -> None:
    file = tmp_path / "backlog.yaml"
    file.write_text(TEXT)
    assert [stream.rebuilds for stream in read_outline(file).streams] == [True]
