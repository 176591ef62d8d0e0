"""backlog.yaml: what is taken, and what is refused and how; consumers, `expand` and hooks."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from backlogctl.config import Config, Consumers, load_config, mask_secrets, render_template
from backlogctl.config.base import LATER, find_nearest, known_keys
from backlogctl.config.consumers import fill_in
from backlogctl.config.hooks import Severity
from backlogctl.config.kafka_properties import (
    ALLOWED_PROPERTIES,
    CODE_PROPERTIES,
    SECRET_PROPERTIES,
)
from backlogctl.config.streams import Stream
from backlogctl.errors import ConfigurationError, Refused, UsageError
from backlogctl.monitoring.verdict.status import Verdict
from scripts.config_reference import render_reference
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

# docs/configuration.md is what the code says.

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == render_reference(), (
        "run: python -m scripts.config_reference > docs/configuration.md"
    )


def test_every_key_has_a_meaning() -> None:
    rows = [line for line in render_reference().splitlines() if line.startswith("| `")]
    assert len(rows) > 50
    for row in rows:
        assert not row.endswith("|  |"), row


def test_the_template_loads_with_the_variable_it_names() -> None:
    config = load()
    stream = config.stream("orders")
    assert config.ledger_url() == "sqlite:////srv/backlog/backlog.db"
    assert config.staging.dir == BASE / "staging"
    assert config.staging.keep == timedelta(days=30)
    assert config.cluster_of(stream).client_properties() == {"bootstrap.servers": "localhost:9092"}
    assert stream.source is not None
    assert stream.source.primary_key == ("order_id",)
    assert stream.source.order_by == ("updated_at",)


def test_every_commented_key_of_the_template_loads_too() -> None:
    lines = render_template().splitlines()[1:]  # the first is a title
    key = re.compile(r"[A-Za-z_.]+:(\s|$)")
    text: list[str] = []
    for line in lines:
        before, mark, after = line.partition("# ")
        if not before.strip() and mark and key.match(after.lstrip()):
            line = before + after
        text.append(line)
    text.remove("ledger: sqlite:///backlog.db")
    env = {**ENV, "LEDGER_PASSWORD": "l", "KAFKA_PASSWORD": "k"}
    env["SLACK_URL"] = "slack://TOKEN-A/TOKEN-B/TOKEN-C"
    config = Config.from_text("\n".join(text), BASE, env)
    assert config.stream("orders").deliver == "topic"
    properties = config.clusters["main"].client_properties()
    assert properties["sasl.password"] == "k"
    assert properties["ssl.ca.location"] == "/srv/backlog/ca.pem"
    assert config.kafka_ledger.replication == 3
    assert config.watch.hooks["team"].from_ == "warn"


def test_an_empty_mapping_is_all_defaults() -> None:
    config = Config.from_text("{}", BASE, {})
    assert config.ledger_url() == "sqlite:////srv/backlog/backlog.db"
    assert config.staging.dir == BASE / "staging"
    assert config.guards.deny_topics == ("__*",)
    assert config.watch.interval == timedelta(seconds=30)
    assert config.spark.master == "local[*]"


def test_fault_62_an_unknown_key_is_named_with_its_path_line_and_the_nearest() -> None:
    said = refuse("    topic: orders", "    topc: orders")
    assert "streams.orders.topc (line 67): unknown key; the nearest known key is `topic`" in said
    said = refuse("staging:", "Stagin:")
    assert "Stagin (line" in said
    assert "`staging`" in said
    assert "`order_by`" in refuse("      margin: 10m", "      orderby: x")
    assert "streams.orders.name" in refuse(*with_stream("name: other"))
    assert "`from`" in refuse(*with_stream("off_peak: {form: '01:00', to: '02:00', timezone: UTC}"))


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Config.from_text("watc: {}\nspark: {mastr: x}\n", BASE, {})
    assert "2 problems" in caught.value.message
    assert "`watch`" in caught.value.message
    assert "`master`" in caught.value.message


@given(st.sampled_from(sorted(known_keys(Stream))), st.data())
def test_fault_62_a_key_with_one_letter_missing_finds_itself(key: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(key) - 1))
    typed = key[:place] + key[place + 1 :]
    nearest = find_nearest(typed, known_keys(Stream))
    assert nearest == key


@given(st.text(min_size=1), st.sets(st.text(min_size=1), min_size=1))
def test_fault_62_something_known_is_always_named(word: str, known: set[str]) -> None:
    assert find_nearest(word, known) in known


@pytest.mark.parametrize(
    ("old", "new"),
    [
        with_stream("deliver: side_topic"),
        ("stale: restate", "stale: skip_if_newer"),
        ("stale: restate", "stale: side_topic"),
        ("message: key ", "message: value:$.order_id "),
        ("url: postgresql+psycopg://", "url: mssql+pyodbc://"),
        ("url: postgresql+psycopg://", "url: oracle://"),
    ],
)
def test_what_comes_later_is_refused_as_such(old: str, new: str) -> None:
    said = refuse(old, new)
    assert LATER in said
    assert "unknown" not in said


@pytest.mark.parametrize("name", sorted(CODE_PROPERTIES))
def test_fault_61_properties_that_load_or_run_code_are_refused(name: str) -> None:
    said = refuse(*with_property(f"{name}: /tmp/evil"))
    assert "loads or runs code" in said
    assert f"clusters.main.{name}" in said
    assert "/tmp/evil" not in said


def test_fault_61_client_properties_are_an_allow_list() -> None:
    assert not ALLOWED_PROPERTIES & (CODE_PROPERTIES | SECRET_PROPERTIES)
    assert "`linger.ms`" in refuse(*with_property("liner.ms: 5"))
    assert "Kerberos" in refuse(*with_property("sasl.mechanism: GSSAPI"))
    assert "itself" in refuse(*with_property("transactional.id: x"))
    assert "http" in refuse(*with_property("sasl.oauthbearer.token.endpoint.url: file:///etc/x"))
    assert "program" in refuse(*with_property('sasl.oauthbearer.token.command: "print-token \'x"'))
    assert "`sasl.mechanism` is required" in refuse(*with_property("security.protocol: SASL_SSL"))
    assert "bootstrap.servers" in refuse(
        "    bootstrap.servers: localhost:9092\n", "    linger.ms: 1\n"
    )


def test_booleans_and_numbers_of_client_properties_become_text() -> None:
    config = load(*with_property("enable.ssl.certificate.verification: true\n    linger.ms: 5"))
    properties = config.clusters["main"].client_properties()
    assert properties["enable.ssl.certificate.verification"] == "true"
    assert properties["linger.ms"] == "5"


def test_yaml_errors_have_a_line_and_no_text_of_the_file() -> None:
    assert "line 2: not YAML" in str(_fail("a: 1\n b: [\n"))
    said = str(_fail("sources:\n  shop: {url: *hunter2}\n"))
    assert "line 2" in said
    assert "hunter2" not in said
    assert "hunter2" not in str(_fail("ledger: !hunter'2 x\n"))
    assert "line 3: the key watch.interval stands twice" in str(
        _fail("watch:\n  interval: 1s\n  interval: 2s\n")
    )
    assert "empty" in str(_fail("# nothing\n"))
    assert "mapping" in str(_fail("- a\n"))
    assert "quote it" in str(_fail("streams: {1: {}}\n"))
    assert "not YAML" in str(_fail("a: !!python/object/apply:os.system ['true']\n"))
    assert "character" in str(_fail("a: \x07\n"))


def test_yaml_bombs_end_at_once() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "too large" in str(_fail("\n".join(lines)))
    assert "too" in str(_fail("a: &a [*a]\n"))
    assert "too" in str(_fail("a: " + "[" * 100_000))
    _fail("watch: {interval: " + "9" * 10_000 + "}")


def _fail(text: str) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        Config.from_text(text, BASE, {})
    return caught.value


@given(st.text())
def test_any_text_loads_or_is_refused_as_ours(text: str) -> None:
    try:
        Config.from_text(text, BASE, {})
    except (ConfigurationError, Refused):
        return


def test_plain_times_of_day_stay_text() -> None:
    config = load(*with_stream("off_peak: {from: 22:30, to: 06:00, timezone: Europe/Berlin}"))
    off_peak = config.stream("orders").off_peak
    assert off_peak is not None
    assert (off_peak.start, off_peak.end) == (time(22, 30), time(6))
    assert off_peak.window().contains(datetime(2026, 11, 21, 22, 0, tzinfo=UTC))
    assert not off_peak.window().contains(datetime(2026, 11, 21, 21, 0, tzinfo=UTC))
    plan = config.stream("orders").fingerprint()
    assert plan["off_peak"] == {"from": "22:30:00", "to": "06:00:00", "timezone": "Europe/Berlin"}


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("timezone: UTC", "timezone: Mars/Base", "sources.shop.timezone"),
        ("timezone: UTC", "timezone: ../../etc/passwd", "sources.shop.timezone"),
        ("margin: 10m", "margin: 10", "source.margin"),
        ("margin: 10m", "margin: 0s", "source.margin"),
        ("margin: 10m", "margin: 99999999999999d", "source.margin"),
        ("primary_key: order_id", "primary_key: []", "source.primary_key"),
        ("primary_key: order_id", "primary_key: [a, a]", "source.primary_key"),
        ("cluster: main", "cluster: mian", "streams.orders.cluster"),
        ("database: shop", "database: shp", "streams.orders.source.database"),
        ("topic: orders", "topic: orders*", "streams.orders.topic"),
        ("topic: orders", "topic: ..", "streams.orders.topic"),
        ("message: key ", "message: header ", "identity.message"),
        ("partitioner: murmur2", "partitioner: random", "streams.orders.partitioner"),
        ("        key: order_id", "        # no key", "streams.orders.source"),
        ("        # headers:", "        headers: {backlog-message-id: x}\n        #", "headers"),
        ("        # headers:", "        ignore_headers: a\n        #", "must be a list: [a]"),
        ("        # headers:", "        ignore_headers: ['']\n        #", "message.ignore_headers"),
        ("        # headers:", "        ignore_fields: [a..b]\n        #", "`a..b` is no path"),
        ("        # headers:", "        ignore_fields: [a.*]\n        #", "`a.*` is a pattern"),
        (*with_stream("limits: {messages_per_second: 0}"), "limits.messages_per_second"),
        (*with_stream("limits: {quota_share: 0%}"), "limits.quota_share"),
        (*with_stream("limits: {quota_share: 101%}"), "limits.quota_share"),
        (*with_stream("limits: {quota_share: 2 MB}"), "limits.quota_share"),
        (*with_stream("off_peak: {from: '25:00', to: '02:00', timezone: UTC}"), "off_peak.from"),
        (*with_stream("off_peak: {from: '02:00', to: '02:00', timezone: UTC}"), "off_peak"),
        (*with_stream("off_peak: {from: '01:00', to: '02:00', timezone: X/Y}"), "off_peak.time"),
        (*with_section("kafka_ledger: {topic: 'a b'}"), "kafka_ledger.topic"),
        (*with_section("guards: {deny_topics: x}"), "guards.deny_topics"),
        (*with_section("spark: {conf: {spark.speculation: true}}"), "spark.conf"),
        (*with_section("spark: {conf: {spark.plugins: a.B}}"), "spark.conf"),
        (*with_section("spark: {conf: {spark.python.daemon.module: a}}"), "spark.conf"),
        (*with_section("spark: {conf: {spark.hadoop.fs.s3a.secret.key: a}}"), "spark.conf"),
        (*with_section("spark: {conf: {spark.driver.extraJavaOptions: -Dx.password=a}}"), "spark"),
    ],
)
def test_wrong_values_are_refused_by_key(old: str, new: str, key: str) -> None:
    assert key in refuse(old, new)


def test_events_with_identity_by_key_are_refused_with_the_reason() -> None:
    said = refuse("stale: restate", "stale: events")
    assert "a surviving one would hide a lost one" in said
    load("        message: key ", "        message: header:event-id ")


def test_order_by_is_the_time_column_unless_it_is_said() -> None:
    source = load("primary_key: order_id", "primary_key: [tenant, updated_at]").stream("orders")
    assert source.source is not None
    assert source.source.order_by == ("updated_at",)
    source = load("      mutable:", "      order_by: id\n      mutable:").stream("orders")
    assert source.source is not None
    assert source.source.order_by == ("id",)


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__x", "backlog-recovery-ledger"])
def test_fault_60_denied_topics_are_refused(topic: str) -> None:
    with pytest.raises(Refused) as caught:
        load("topic: orders", f"topic: {topic}")
    assert caught.value.exit_code == 5


def test_fault_60_kafkas_own_topics_are_denied_whatever_the_guards_say() -> None:
    text = render_template().replace("topic: orders", "topic: __consumer_offsets")
    with pytest.raises(Refused):
        Config.from_text(f"guards: {{deny_topics: []}}\n{text}", BASE, ENV)


def test_without_a_file_one_stream_for_each_topic() -> None:
    config = Config.for_bootstrap("localhost:9092", "g", ["a", "_b"])
    assert [stream.topic for stream in config.streams.values()] == ["a", "_b"]
    assert config.cluster_of(config.stream("a")).bootstrap == "localhost:9092"
    assert config.ledger_url() == "sqlite:///:memory:"
    with pytest.raises(UsageError, match="letters, digits"):
        Config.for_bootstrap("localhost:9092", "g", "a b")
    with pytest.raises(Refused):
        Config.for_bootstrap("localhost:9092", "g", "__x")


def test_an_unknown_stream_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="nearest is orders"):
        load().stream("order")


def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="backlogctl init"):
        load_config(tmp_path / "backlog.yaml", {})
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_config(tmp_path, {})
    (tmp_path / "latin").write_bytes(b"a: \xff")
    with pytest.raises(ConfigurationError, match="UTF-8"):
        load_config(tmp_path / "latin", {})


def test_the_environment_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("watch: {interval: 5s}")
    config = load_config(None, {"BACKLOG_CONFIG": str(tmp_path / "other.yaml")})
    assert config.watch.interval == timedelta(seconds=5)
    assert config.staging.dir == tmp_path / "staging"


def test_absolute_and_memory_ledgers_stay_as_they_are() -> None:
    for url in ("sqlite:////var/lib/x.db", "sqlite:///:memory:", "sqlite://"):
        assert Config.from_text(f"ledger: '{url}'", BASE, {}).ledger_url() == url


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


_PODS = "launcher: kubernetes, kubernetes: {workload: deployment/orders"


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
        (
            "launcher: swarm",
            "must be one of `process`, `command`, `manual`, `kubernetes` or `compose`",
        ),
        ("launcher: kubernetes", "`launcher: kubernetes` needs `kubernetes`"),
        ("launcher: manual, kubernetes: {workload: deployment/a}", "`kubernetes` does not go with"),
        (f"{_PODS}}}, environment: {{LEVEL: info}}", "`kubernetes.variables`"),
        (f"{_PODS}, variables: {{T: '{{topic}}'}}}}", "none of them has `{group}`"),
        (f"{_PODS}, variables: {{T: '{{topics}}'}}}}", "`{topics}` is not a placeholder"),
        (
            f"{_PODS}, variables: {{'a b': '{{topic}}{{group}}'}}}}",
            "is not a name of an environment variable",
        ),
        (f"{_PODS}, namespace: A}}", "is not the name of a namespace"),
        ("launcher: kubernetes, kubernetes: {workload: orders}", "must be `deployment/NAME`"),
        ("launcher: compose", "`launcher: compose` needs `compose`"),
        ("launcher: manual, compose: {files: [a], service: a}", "`compose` does not go with"),
        ("launcher: compose, compose: {files: [], service: a}", "compose.files"),
        ("launcher: compose, compose: {files: [a], service: --all}", "not the name of a service"),
        ("launcher: compose, compose: {files: [a], service: a, project: A}", "name of a project"),
        (
            "launcher: compose, compose: {files: [a], service: a, variables: {T: '{topic}'}}",
            "none of them has `{group}`",
        ),
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
@settings(max_examples=20)  # every one of them is masked in all texts of this process
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
