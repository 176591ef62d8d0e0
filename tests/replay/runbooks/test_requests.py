"""The form of a recovery: what an API sends may be anything."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog.config import Config
from backlog.errors import UsageError
from replay.expand_plans import ORDERS
from replay.runbooks.requests import ACTIONS, BY_STREAM, RecoveryRequest, read_request
from tests.replay.runbooks.desks import RUN, open_shop

FIELDS = tuple(RecoveryRequest.__dataclass_fields__)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return open_shop(tmp_path_factory.mktemp("form")).config


def read(config: Config, **form: Any) -> RecoveryRequest:
    return read_request(config, {"stream": "orders", **form})


def refuse(config: Config, **form: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        read(config, **form)
    return caught.value


def test_an_empty_form_takes_what_is_configured(config: Config) -> None:
    untouched = {name: None for name in FIELDS if name != "stream"}
    assert read(config) == read(config, **untouched) == RecoveryRequest("orders")
    blank = {"action": "", "since": " ", "order": BY_STREAM, "factor": "", "rate": "", "note": ""}
    assert read(config, **blank) == RecoveryRequest("orders")


def test_every_field_is_taken_as_it_is_meant(config: Config) -> None:
    request = read(
        config,
        action="rebuild",
        since="2026-11-21T08:00",
        until="2026-11-21T08:00:00Z",
        order="round_robin",
        factor=10.0,
        rate=12.5,
        note=" INC-4711 ",
        recovery="r-20261121-0007",
        answer_within="1h30m",
    )
    # Without a zone it is the source's own time: Shanghai is eight hours ahead.
    assert request.since == datetime(2026, 11, 21, 0, 0, tzinfo=UTC)
    assert request.until == datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
    assert (request.action, request.order, request.factor) == ("rebuild", "round_robin", 10)
    assert isinstance(request.factor, int)
    assert (request.rate, request.note) == (12.5, "INC-4711")
    assert (request.recovery, request.answer_within) == (
        "r-20261121-0007",
        timedelta(minutes=90),
    )
    rebuild, expand = request.rebuild_options(RUN), request.expand_options(RUN)
    assert (rebuild.since, rebuild.until, rebuild.origin) == (request.since, request.until, RUN)
    assert (expand.rate, expand.factor, expand.order) == (12.5, 10, "round_robin")
    expand.check()


def test_an_unknown_stream_names_the_nearest(config: Config) -> None:
    error = refuse(config, stream="ordres")
    assert (error.subject, error.hint) == ("stream ordres", "the nearest is orders")
    assert "stream" in refuse(config, stream=None).subject


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("stream", [7, ["orders"], {"name": "orders"}, True, "orders\0", "x" * 501]),
        ("action", ["drain", "expand; rm -rf /", 1, ["expand"], "AUTO\0"]),
        ("order", ["random", "key,round_robin", 3, {"order": "key"}]),
        ("since", ["yesterday", "2026-13-01", "25:00", 1763700000, "0001-01-01T00:00+14:00"]),
        ("until", ["soon", "9999-12-31T23:59:59-14:00", False, "2026-11-21T08:00:00+99:00"]),
        ("factor", [0, -1, 1.5, "10", True, 10**9, 10**5000, math.nan, math.inf, [10], {}]),
        ("rate", [0, -0.1, "fast", "10", True, 10**400, 10**5000, math.nan, math.inf, -math.inf]),
        ("note", [["a"], 5, "x" * 501, "bell \a", "half \ud800", "\x00"]),
        ("recovery", [7, "../../etc/passwd", "r 1", "a" * 65, "'; DROP TABLE x; --"]),
        ("answer_within", ["soon", "0s", "-1h", 60, "1e3s", "366d", "9" * 4000 + "d", "2 h"]),
    ],
)
def test_nonsense_is_refused_by_the_fields_name(
    config: Config, field: str, values: list[Any]
) -> None:
    for value in values:
        error = refuse(config, **{field: value})
        assert field in error.subject, (field, value)
        assert len(str(error)) < 800


def test_since_is_before_until(config: Config) -> None:
    at = "2026-11-21T08:00:00Z"
    for since in (at, "2026-11-21T08:00:01Z", "2026-11-21T16:00:00+08:00"):
        assert refuse(config, since=since, until=at).subject == "since"
    assert read(config, since="2026-11-21T07:59:59Z", until=at).since


def test_markup_in_a_note_is_text_and_a_password_is_not_kept(tmp_path: Path) -> None:
    note = "<script>alert(1)</script> | [x](http://evil) `$(id)` **b**\nand so on"
    config = open_shop(tmp_path).config
    assert read(config, note=note).note == note
    (tmp_path / "other").mkdir()
    url = "postgresql://reader:${env:PASS}@db.example/shop"
    text = json.dumps(
        {
            "ledger": "sqlite:///ledger.db",
            "clusters": {"main": {"bootstrap.servers": "127.0.0.1:1"}},
            "sources": {"shop": {"url": url, "timezone": "UTC"}},
            "streams": {"orders": {"cluster": "main", "topic": "orders", "group": "g"}},
        }
    )
    secret = Config.from_text(text, tmp_path, {"PASS": "hunter2hunter2"})
    assert read(secret, note="it is hunter2hunter2").note == "it is ***"


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from([*ACTIONS, *ORDERS, "orders", "2026-11-21T08:00", "2h", "9d", 10**400])
    | st.datetimes().map(str),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from(FIELDS), JUNK), st.booleans())
def test_whatever_the_form_holds_it_is_a_request_or_a_named_field(
    config: Config, form: Mapping[str, Any], known: bool
) -> None:
    form = {**form, "stream": "orders"} if known else form
    request, subject = None, ""
    try:
        request = read_request(config, form)
    except UsageError as error:
        subject = error.subject
    if request is None:
        assert any(name in subject for name in FIELDS)
        return
    assert request.stream == "orders"
    assert request.action in ACTIONS
    assert request.order in (None, *ORDERS)
    assert not (request.since and request.until) or request.since < request.until
    request.expand_options(RUN).check()
    json.dumps([request.note, request.factor, request.rate], allow_nan=False).encode()
