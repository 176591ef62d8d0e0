"""`outboxes`: names under `sources`, in databases that only an outbox may be in."""

from __future__ import annotations

from datetime import timedelta

import pytest

from backlog.config import Config, mask_secrets, render_template
from backlog.config.base import LATER
from backlog.errors import ConfigurationError
from tests.backlog.config_texts import BASE, load, refuse, with_section

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
