"""Headers and fields that differ in each message: no reason to put handled messages back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from backlogctl.errors import Refused
from tests.spark_backfill import world
from tests.spark_backfill.placing.losing import (
    Losing,
    lost_keys,
    make_orders,
    mark_all,
)

MESSAGE = {"key": "order_id", "value": {"json": world.FIELDS}}


def trace(row: world.Row) -> tuple[world.Header, ...]:
    """What an agent of OpenTelemetry adds."""
    return (("traceparent", f"00-{row['order_id']:032x}-{row['order_id']:016x}-01".encode()),)


def request_id(row: world.Row) -> tuple[world.Header, ...]:
    return (("request-id", str(row["order_id"]).encode()),)


def stamp(row: world.Row) -> bytes:
    """The producer says when it sent it."""
    value = json.loads(world.encode_order(row))
    value = {"sent_at": row["order_id"] * 7, **value}
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("sent", "setting"),
    [({"head": request_id}, {"ignore_headers": ["request-*"]}),
     ({"encode": stamp}, {"ignore_fields": ["sent_at"]})],
    ids=["header", "field"],
)  # fmt: skip
def test_fault_96_what_differs_in_each_message_doubles_nothing(
    losing: Losing, sent: dict[str, Any], setting: dict[str, Any]
) -> None:
    rows = make_orders()
    gaps = losing.lose(rows, **sent)
    marks = mark_all(rows, gaps)
    request = losing.open(gaps, bookmarks=marks, allow=frozenset({"proof"}))
    outcome = losing.plan(request)
    assert world.keys_of(request) == lost_keys(rows)
    assert (outcome.verdict, outcome.counts.surplus) == ("short", 0)
    assert outcome.reasons == (
        "the rules are not proved: only 0 of 200 surviving messages agree, "
        "200 in key and partition",
    )
    assert "known by bookmarks in 3 partitions" in outcome.evidence

    (kind,), ((named,),) = setting, setting.values()
    plain = named.replace("request-*", "request-id")
    with pytest.raises(Refused, match="only 0 of 200 surviving messages") as refused:
        losing.plan(replace(request, recovery_id="r-2", allow=frozenset()))
    assert f"differs in 200 of 200: add `{kind}: [{plain}]` to `message`" in refused.value.hint

    source = {"message": {**MESSAGE, **setting}}
    ignoring = losing.open(gaps, bookmarks=marks, recovery_id="r-3", source=source)
    outcome = losing.plan(ignoring)
    assert world.keys_of(ignoring) == lost_keys(rows)
    assert (outcome.verdict, outcome.reasons) == ("exact", ())
    (told,) = outcome.proof.variations
    assert (told.name, told.messages, told.ignored) == (plain, 200, True)


def test_fault_96_trace_headers_are_of_no_row(losing: Losing) -> None:
    rows = make_orders()
    gaps = losing.lose(rows, head=trace)
    marks = mark_all(rows, gaps)
    allow = frozenset({"proof"})
    request = losing.open(gaps, bookmarks=marks, allow=allow)
    outcome = losing.plan(request)
    assert world.keys_of(request) == lost_keys(rows)
    assert (outcome.verdict, outcome.reasons) == ("exact", ())
    (told,) = outcome.proof.variations
    assert (told.what, told.name, told.messages) == ("header", "traceparent", 200)
    assert told.ignored
    assert all(
        header["name"].startswith("backlog-")
        for message in world.read_staged(request).to_pylist()
        for header in message["headers"]
    )
