"""The `consumers` and `expand` sections: commands, directory, variables and their secrets."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from pydantic import SecretStr

from backlogctl.config import Config, Consumers, mask_secrets
from backlogctl.config.consumers import fill_in
from tests.kernel.config_texts import BASE, ENV, SECRETS, load, refuse, with_stream


def with_consumers(text: str) -> tuple[str, str]:
    return with_stream(f"consumers: {{{text}}}")


def load_consumers(text: str, env: dict[str, str] | None = None) -> Consumers:
    consumers = load(*with_consumers(text), env=env).stream("orders").consumers
    assert consumers is not None
    return consumers


def test_a_process_launcher_with_its_defaults() -> None:
    consumers = load_consumers("launcher: process, command: [python, -m, service, '{topic}']")
    assert consumers.directory == BASE
    assert consumers.command == ("python", "-m", "service", "{topic}")
    assert (consumers.replicas, consumers.max_consumers) == (1, None)
    assert consumers.stop_within == timedelta(seconds=60)
    assert (consumers.ramp.step, consumers.ramp.every) == (10, timedelta(seconds=1))
    stream = load().stream("orders")
    assert stream.consumers is None
    assert (stream.expand.factor, stream.expand.order) == (10, "key")


@pytest.mark.parametrize(
    ("written", "meant"),
    [("service", BASE / "service"), ("/opt/service", Path("/opt/service")), (".", BASE)],
)
def test_the_directory_is_relative_to_the_file(written: str, meant: Path) -> None:
    assert load_consumers(f"launcher: manual, directory: {written}").directory == meant


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("launcher: process", "`launcher: process` needs `command`"),
        ("launcher: command, scale: [a]", "`launcher: command` needs `stop`"),
        ("launcher: manual, command: [a]", "`command` does not go with `launcher: manual`"),
        ("launcher: process, command: []", "consumers.command"),
        ("launcher: process, command: [a], lancher: x", "nearest known key is `launcher`"),
        ("launcher: manual, ramp: {stepp: 2}", "nearest known key is `step`"),
        ("launcher: manual, replicas: 0", "consumers.replicas"),
        ("launcher: manual, directory: [a]", "consumers.directory"),
        ("launcher: swarm", "must be one of `process`, `command` or `manual`"),
    ],
)
def test_what_does_not_fit_is_refused_by_key(text: str, told: str) -> None:
    assert told in refuse(*with_consumers(text))


@pytest.mark.parametrize("word", ["topc", "replicas", "", "topic!r", "topic:>9", "topic.name", "0"])
def test_an_unknown_word_of_a_command_is_refused_with_the_known_ones(word: str) -> None:
    said = refuse(*with_consumers(f"launcher: process, command: [a, '--x={{{word}}}']"))
    assert f"`{{{word}}}` is not a placeholder" in said
    assert "streams.orders.consumers.command (line" in said
    for known in ("topic", "group", "bootstrap_servers", "index", "role", "stream", "recovery"):
        assert f"`{{{known}}}`" in said


def test_each_command_has_words_of_its_own() -> None:
    load_consumers("launcher: command, scale: [a, '{replicas}'], stop: [b, '{topic}'], status: [c]")
    start = "launcher: command, scale: [a], stop: [b], status: [c]"
    assert "`{index}`" in refuse(*with_consumers(start.replace("[a]", "[a, '{index}']")))
    assert "consumers.stop" in refuse(*with_consumers(start.replace("[b]", "[b, '{replicas}']")))
    assert "partner" in refuse(*with_consumers(start.replace("[c]", "[c, 'a}']")))


def test_braces_of_ones_own_are_written_twice() -> None:
    command = load_consumers("launcher: process, command: [a, '{{.Names}}-{topic}']").command
    assert command is not None
    assert fill_in(command, {"topic": "x{y}"}) == ["a", "{.Names}-x{y}"]


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        ("BACKLOG_TOPIC: x", "sets the variables `BACKLOG_*` itself"),
        ("backlog_x: x", "sets the variables `BACKLOG_*` itself"),
        ("'A=B': x", "not a name of an environment variable"),
        ("DB_PASSWORD: hunter2hunter2", "${env:NAME}"),
        ("URL: 'http://me:hunter2hunter2@host/'", "${env:NAME}"),
        ("X: '${env:NOT_SET}'", "NOT_SET is not set"),
    ],
)
def test_variables_that_are_refused(variable: str, told: str) -> None:
    said = refuse(*with_consumers(f"launcher: manual, environment: {{{variable}}}"))
    assert told in said
    assert "streams.orders.consumers.environment." in said
    assert "hunter2" not in said


def test_fault_59_arguments_take_no_reference() -> None:
    said = refuse(*with_consumers("launcher: process, command: [a, '${env:SHOP_PASSWORD}']"))
    assert "`environment`" in said
    assert "s3cr3t" not in said


def test_values_of_variables_are_text() -> None:
    consumers = load_consumers("launcher: manual, environment: {A: 5, B: true, C: '', D: info}")
    assert consumers.reveal_environment() == {"A": "5", "B": "true", "C": "", "D": "info"}


@given(SECRETS)
def test_fault_59_a_secret_of_the_environment_is_in_no_text(secret: str) -> None:
    config = load(
        *with_consumers("launcher: manual, environment: {KEY: '${env:KEY}', LEVEL: info}"),
        env={**ENV, "KEY": secret},
    )
    stream = config.stream("orders")
    assert stream.consumers is not None
    assert stream.consumers.reveal_environment()["KEY"] == secret
    fingerprint = stream.fingerprint()
    assert fingerprint["consumers"]["environment"] == ["KEY", "LEVEL"]
    dumped = json.dumps(config.model_dump(mode="json"))
    for text in (repr(config), str(stream), repr(config.model_dump()), dumped, str(fingerprint)):
        assert "S3~" not in text
    assert "S3~" not in config.mask_secrets(f"the consumer said {secret}")
    assert "S3~" not in mask_secrets(f"the consumer said {secret!r}")


def test_a_configuration_made_in_code_needs_no_file() -> None:
    consumers = Consumers.model_validate({"launcher": "manual", "environment": {"A": "b"}})
    assert consumers.environment == {"A": SecretStr("b")}
    assert consumers.directory is None


@pytest.mark.parametrize("name", [".", ".."])
def test_a_stream_is_not_named_as_a_directory_above(name: str) -> None:
    with pytest.raises(Exception, match="letters, digits"):
        Config.from_text(f"clusters: {{'{name}': {{bootstrap.servers: h}}}}", BASE, {})
