"""Secrets come by reference only, and no text ever shows one."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from backlogctl.config import Cluster, Config, Source, load_config, mask_secrets, render_template
from backlogctl.config.references import FindConnection
from backlogctl.errors import BacklogError, ConfigurationError
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


def test_a_password_is_percent_encoded_where_it_stands_in_a_url() -> None:
    config = load_airflow({"shop.password": "p@ss:w/ord%"})
    assert "backlog_reader:p%40ss%3Aw%2Ford%25@localhost" in config.sources["shop"].reveal_url()


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


def test_host_and_port_are_no_secrets() -> None:
    known = {"shop.password": "s3cr3t", "shop.host": "db.example", "shop.port": "5433"}
    config = load_airflow(known, "localhost/shop", "${airflow:shop.host}:${airflow:shop.port}/shop")
    assert "@db.example:5433/shop" in config.sources["shop"].reveal_url()
    assert config.mask_secrets("db.example:5433 does not answer s3cr3t") == (
        "db.example:5433 does not answer ***"
    )


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


def test_it_is_not_taken_where_everybody_would_see_it() -> None:
    section = f"spark: {{conf: {{spark.app.name: '{PASSWORD}'}}}}\nstaging:\n"
    said = refuse_airflow({"shop.password": "hunter2hunter2"}, "staging:\n", section)
    assert "so a reference is not taken" in said
    assert "hunter2" not in said


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


def test_references_are_not_followed_twice() -> None:
    config = load(env={"SHOP_PASSWORD": "${env:OTHER}", "OTHER": "x"})
    assert quote("${env:OTHER}", safe="") in config.sources["shop"].reveal_url()


def test_references_are_not_taken_where_they_would_be_shown() -> None:
    assert "SQL" in refuse("key: order_id  ", 'key: {sql: "${env:SHOP_PASSWORD}"}  ')
    assert "Spark shows" in refuse(
        *with_section('spark: {conf: {spark.driver.memory: "${env:SHOP_PASSWORD}"}}')
    )


@given(SECRETS)
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


def test_masking_leaves_host_port_and_database_readable() -> None:
    config = load(
        "${env:SHOP_PASSWORD}@localhost/shop",
        "${env:SHOP_PASSWORD}@${env:HOST}/${env:NAME}",
        {**ENV, "HOST": "db.example.com", "NAME": "shop"},
    )
    text = "db.example.com/shop refused s3cr3t-of-shop"
    assert config.mask_secrets(text) == "db.example.com/shop refused ***"


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
