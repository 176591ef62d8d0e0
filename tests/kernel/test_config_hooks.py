"""Hooks: one kind each, secrets by reference, names that exist, and no secret over plain http."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from backlogctl.config import Config, mask_secrets
from backlogctl.config.hooks import Severity
from backlogctl.monitoring.verdict.status import Verdict
from tests.kernel.config_texts import ENV, load, refuse, with_section

SLACK = "slack://T000/B000/hunter2hunter2"
HOOK = "https://hooks.example/T000/B000/hunter2hunter2"
KEY = "hunter2hunter2hunter2hunter2hunt"
REFERENCES = {**ENV, "SLACK": SLACK, "HOOK": HOOK, "KEY": KEY, "TOKEN": "hunter2-token"}


def with_hook(text: str) -> tuple[str, str]:
    return with_section(f"watch: {{hooks: {{team: {{{text}}}}}}}")


def load_hook(text: str) -> Config:
    return load(*with_hook(text), env=REFERENCES)


def refuse_hook(text: str) -> str:
    said = refuse(*with_hook(text), env=REFERENCES)
    assert "watch.hooks.team" in said
    assert "hunter2" not in said
    return said


@pytest.mark.parametrize(
    "text",
    [
        f'apprise: "{SLACK}"',
        'apprise: "slack://${env:KEY}/x/"',
        'webhook: "https://hooks.example/", token: hunter2-token',
        'webhook: "https://me:hunter2@hooks.example/"',
        'webhook: "https://hooks.example/?token=hunter2"',
    ],
)
def test_a_secret_written_into_the_file_is_refused(text: str) -> None:
    assert "${env:NAME}" in refuse_hook(text)


def test_what_a_hook_holds_is_in_no_text() -> None:
    for text, url in (
        ('apprise: "${env:SLACK}"', SLACK),
        ('webhook: "${env:HOOK}", token: "${env:TOKEN}"', HOOK),
        ('webhook: "https://hooks.example/x"', "https://hooks.example/x"),
    ):
        config = load_hook(text)
        assert config.watch.hooks["team"].reveal_url() == url
        dumped = json.dumps(config.model_dump(mode="json"))
        for shown in (repr(config), repr(config.model_dump()), dumped):
            assert "hunter2" not in shown
    for secret in (SLACK, HOOK, "hunter2hunter2", "hunter2-token"):
        assert mask_secrets(f"it says {secret}") == "it says ***"
    assert mask_secrets("hooks.example T000") == "hooks.example T000"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("from: warn", "needs `apprise` or `webhook`"),
        ('apprise: "${env:SLACK}", webhook: "${env:HOOK}"', "only one of them"),
        ('apprise: "${env:KEY}"', "must be a URL of apprise"),
        ('apprise: "${env:SLACK}", token: "${env:TOKEN}"', "goes with `webhook`"),
        ('webhook: "ftp://hooks.example/"', "must be a URL"),
        ('webhook: "https://hooks.example/a b"', "must be a URL"),
        ('webhook: "https://:1/"', "must be a URL"),
        ('webhook: "http://hooks.example/", token: "${env:TOKEN}"', "must be https"),
        ('apprise: "${env:SLACK}", from: ok', "must be one of `lagging`"),
        ('apprise: "${env:SLACK}", streams: [order]', "nearest known stream is `orders`"),
        ('apprise: "${env:SLACK}", streams: ["pay*"]', "unknown stream"),
        ('apprise: "${env:SLACK}", timeout: 10', "must be a duration"),
        ('apprise: "${env:SLACK}", url: x', "unknown key"),
    ],
)
def test_what_is_wrong_with_a_hook_is_said(text: str, why: str) -> None:
    assert why in refuse_hook(text)


def test_plain_http_is_taken_where_no_secret_goes() -> None:
    load_hook('webhook: "http://hooks.example:8080/backlog"')
    load_hook('webhook: "http://127.0.0.1:8080/", token: "${env:TOKEN}"')


def test_it_is_told_of_the_streams_that_it_names() -> None:
    hook = load_hook('apprise: "${env:SLACK}", streams: ["or*", orders]').watch.hooks["team"]
    assert hook.is_for("orders")
    assert not hook.is_for("bills")


def test_the_least_verdict_is_one_of_the_verdicts() -> None:
    assert get_args(Severity) == tuple(str(one) for one in Verdict if one is not Verdict.OK)
    assert load_hook('apprise: "${env:SLACK}"').watch.hooks["team"].from_ == "unknown"
