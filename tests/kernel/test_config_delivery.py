"""`outboxes`: names under `sources`, in databases that only an outbox may be in."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from backlogctl.config import Config, Stream, StreamSource, mask_secrets, render_template
from backlogctl.config.base import LATER
from backlogctl.config.root import read_outline
from backlogctl.config.streams import expand_outbox
from backlogctl.errors import ConfigurationError
from backlogctl.replay.engine.guards import fingerprint_stream
from backlogctl.replay.engine.plan import find_changes
from backlogctl.replay.kinds.rebuild.planning import FINGERPRINT
from backlogctl_delivery import stamps
from tests.kernel.config_texts import BASE, load, refuse, with_section

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


@pytest.mark.parametrize(
    "change",
    [
        ("      database: shop\n", "      database: billing\n"),
        (
            "      # consumed:\n",
            "      consumed: {database: billing, table: done, column: order_id}\n",
        ),
    ],
)
def test_a_stream_is_not_rebuilt_from_such_a_database(change: tuple[str, str]) -> None:
    text = render_template()
    for old, new in (("streams:\n", BILLING), change):
        assert old in text
        text = text.replace(old, new, 1)
    with pytest.raises(ConfigurationError) as caught:
        Config.from_text(text, BASE, {"SHOP_PASSWORD": "unused-here", "BILLING_PASSWORD": SECRET})
    assert "streams.orders.source." in str(caught.value)
    assert f"a database other than postgresql or sqlite {LATER}" in str(caught.value)


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


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
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
    for key in ("tombstones", "header_list", "partition"):
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
