"""`backlogctl lookback`: what operators see and do; what is configured wrongly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from backlogctl.config import Config
from backlogctl.errors import ConfigurationError
from backlogctl_delivery.lookback.admin import park_message
from backlogctl_delivery.lookback.metrics import Metrics
from backlogctl_delivery.lookback.tables import LookBackDatabase, create_tables
from tests.delivery.kit import Teller
from tests.replay.calling import call_main

_CONFIG = """\
clusters: {main: {bootstrap.servers: "localhost:9092"}}
look_back:
  database: sqlite:///look-back.db
  cluster: main
  services: {payments: {http: "https://payments.example.com/look-back"}}
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "backlog.yaml").write_text(_CONFIG)
    return tmp_path


@pytest.fixture
def teller(place: Path) -> Teller:
    settings = Config.from_text(_CONFIG, place).look_back
    assert settings is not None
    database = LookBackDatabase(settings.reveal_url())
    create_tables(database)
    return Teller(database, settings.to_settings())


def _call(place: Path, *words: str, code: int = 0) -> Any:
    found, out, err = call_main(("lookback", *words, "--json"), place, {})
    assert found == code, err
    return json.loads(out)


def _show(place: Path, *words: str) -> str:
    found, out, err = call_main(("lookback", *words), place, {})
    assert found == 0, err
    return out


def test_parked_messages_are_seen_and_resumed(teller: Teller, place: Path) -> None:
    teller.prepare("1", value=b"secret of a customer")
    made = teller.find("1")["id"]
    _call(place, "park", made)
    teller.commit("1")
    states = {one["state"]: one["messages"] for one in _call(place, "status")["states"]}
    assert states == {"prepared": 0, "committed": 0, "forwarding": 0, "parked": 1}
    assert [one["id"] for one in _call(place, "list", "--state", "parked")["messages"]] == [made]
    shown = _call(place, "show", made)
    assert (shown["state"], shown["value_bytes"]) == ("parked", 20)
    assert [one["kind"] for one in shown["incidents"]] == ["commit_after_parking"]
    assert "secret" not in json.dumps(shown)
    for words in (("status",), ("list",), ("list", "--incidents"), ("show", made)):
        assert "secret" not in _show(place, *words)
    assert _call(place, "resume", "--all")["resumed"] == [made]
    assert teller.state("1") == "prepared"
    assert _call(place, "resume", made, code=5)["error"]["code"] == "refused"
    assert _call(place, "show", "nothing", code=2)["error"]["code"] == "usage"
    assert _call(place, "resume", code=2)["error"]["code"] == "usage"


def test_names_that_others_chose_are_escaped(teller: Teller, place: Path) -> None:
    teller.prepare("a\x1b[31mb", service="\u202eevil")
    shown = _show(place, "list")
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert r"\u202e" in shown


def test_without_tables_it_says_what_makes_them(place: Path) -> None:
    error = _call(place, "status", code=1)["error"]
    assert error["code"] == "look_back_database"
    assert "lookback run" in error["hint"]


def test_the_figures_stand_for_what_waits(teller: Teller) -> None:
    teller.prepare("1")
    park_message(teller.database, teller.find("1")["id"], "somebody")
    text = generate_latest(Metrics(teller.database).registry).decode()
    assert 'backlog_lookback_messages{state="parked"} 1.0' in text
    assert 'backlog_lookback_messages{state="prepared"} 0.0' in text
    assert 'backlog_lookback_oldest_seconds{state="parked"}' in text
    assert 'backlog_lookback_oldest_seconds{state="prepared"}' not in text
    assert "backlog_lookback_database_up 1.0" in text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("cluster: main", "cluster: mian"), "look_back.cluster"),
        (("http:", "htpp:"), "the nearest known key is `http`"),
        (("https:", "ftp:"), "must be a URL"),
        (("https://", "https://user:${env:X}@"), "is not taken"),
        (('back"}', 'back", networks: [10.0.0.1/8]}'), "must be an address or a network"),
        (('back"}', 'back", grpc: "a:1"}'), "only one of them"),
        (('http: "https', 'token: "${env:X}", http: "http'), "needs TLS"),
        (("sqlite:///look-back.db", "mysql://db/x"), "not supported"),
    ],
)
def test_what_is_configured_wrongly_is_said_by_its_key(change: tuple[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Config.from_text(_CONFIG.replace(*change), env={"X": "hidden-value"})
    assert said in str(caught.value)
    assert "hidden-value" not in str(caught.value)


def test_fault_59_its_secrets_are_masked() -> None:
    text = _CONFIG.replace("sqlite:///look-back.db", "postgresql://u:${env:PASSWORD}@db/x")
    text = text.replace('back"}', 'back", token: "${env:TOKEN}"}')
    config = Config.from_text(text, env={"PASSWORD": "pass-word", "TOKEN": "to-ken"})
    shown = f"{config!r} {config.model_dump()}"
    assert "pass-word" not in shown
    assert "to-ken" not in shown
    assert config.mask_secrets("a pass-word and a to-ken") == "a *** and a ***"
