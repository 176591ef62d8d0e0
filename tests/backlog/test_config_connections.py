"""`${airflow:CONNECTION.FIELD}`: looked up by whoever reads the file for Airflow, and nobody else."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

import pytest
from hypothesis import given, settings

from backlog.config import Config, mask_secrets, render_template
from backlog.config.references import FindConnection
from backlog.errors import ConfigurationError
from tests.backlog.config_texts import BASE, SECRETS, with_property

PASSWORD = "${airflow:shop.password}"


def load(known: Mapping[str, str] | None, old: str = "", new: str = "") -> Config:
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


def refuse(known: Mapping[str, str] | None, old: str = "", new: str = "") -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(known, old, new)
    return str(caught.value)


def test_a_password_is_percent_encoded_where_it_stands_in_a_url() -> None:
    config = load({"shop.password": "p@ss:w/ord%"})
    assert "backlog_reader:p%40ss%3Aw%2Ford%25@localhost" in config.sources["shop"].reveal_url()


@given(SECRETS)
@settings(max_examples=10)  # every one of them is masked in all texts of this process
def test_fault_59_a_connections_password_is_masked(secret: str) -> None:
    config = load({"shop.password": secret}, *with_property(f"sasl.password: {PASSWORD}"))
    url = config.sources["shop"].reveal_url()
    assert unquote(url.partition("backlog_reader:")[2].rpartition("@localhost")[0]) == secret
    assert config.clusters["main"].client_properties()["sasl.password"] == secret
    for text in (secret, url, f"failed: {secret!r}"):
        assert secret not in mask_secrets(text)
        assert secret not in config.mask_secrets(text)
    assert secret not in repr(config)


def test_host_and_port_are_no_secrets() -> None:
    known = {"shop.password": "s3cr3t", "shop.host": "db.example", "shop.port": "5433"}
    config = load(known, "localhost/shop", "${airflow:shop.host}:${airflow:shop.port}/shop")
    assert "@db.example:5433/shop" in config.sources["shop"].reveal_url()
    assert config.mask_secrets("db.example:5433 does not answer s3cr3t") == (
        "db.example:5433 does not answer ***"
    )


def test_a_value_may_be_made_of_several_and_is_not_followed() -> None:
    known = {"shop.password": "${env:HOME}", "kafka.host": "broker", "kafka.port": "9093"}
    servers = "bootstrap.servers: localhost:9092"
    config = load(
        known, servers, "bootstrap.servers: '${airflow:kafka.host}:${airflow:kafka.port}'"
    )
    properties = config.clusters["main"].client_properties()
    assert properties["bootstrap.servers"] == "broker:9093"
    assert "%24%7Benv%3AHOME%7D@" in config.sources["shop"].reveal_url()


def test_in_the_shell_it_is_refused_by_its_key() -> None:
    said = refuse(None)
    assert "sources.shop.url" in said
    assert "known to Airflow only" in said
    assert "${env:NAME}" in said


def test_what_is_missing_is_told_with_its_key_and_what_to_do() -> None:
    said = refuse({})
    assert "sources.shop.url" in said
    assert "Airflow has no connection shop: add it" in said
    assert "field shop.password is empty" in refuse({"shop.password": ""})


@pytest.mark.parametrize("text", ["${airflow:}", "${airflow:shop", "${Airflow:shop.password}"])
def test_what_is_not_written_as_a_reference_is_refused(text: str) -> None:
    assert "a reference is written" in refuse({"shop.password": "x"}, PASSWORD, text)


def test_it_is_not_taken_where_everybody_would_see_it() -> None:
    section = f"spark: {{conf: {{spark.app.name: '{PASSWORD}'}}}}\nstaging:\n"
    said = refuse({"shop.password": "hunter2hunter2"}, "staging:\n", section)
    assert "so a reference is not taken" in said
    assert "hunter2" not in said
