"""The form of a recovery may hold anything; a kind that this program does not know."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from backlogctl.clock import utc_now
from backlogctl.config import Config
from backlogctl.errors import Refused, UsageError
from backlogctl.fanout.layout import MAX_FACTOR
from backlogctl.monitoring.verdict.status import Verdict
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.engine.options import read_options
from backlogctl.replay.engine.plan import name_origin
from backlogctl.replay.kinds import EXPAND, KINDS, REBUILD
from backlogctl.replay.kinds.expand.plan import ORDERS, ExpandOptions
from backlogctl.replay.kinds.rebuild.plan import RebuildOptions
from backlogctl.replay.runbooks import detection, nights
from backlogctl.replay.runbooks.descriptions import (
    describe_body,
    describe_outcome,
    describe_subject,
)
from backlogctl.replay.runbooks.detection import (
    choose_actions,
    detect_backlog,
    find_declined,
    should_plan,
)
from backlogctl.replay.runbooks.nights import Tonight, find_night_work
from backlogctl.replay.runbooks.requests import (
    AUTO,
    BY_STREAM,
    RecoveryRequest,
    choose_options,
    find_or_plan,
    list_fields,
    read_request,
    refuse_unknown,
)
from backlogctl.replay.runbooks.work import carry_on, list_left_open, restore_layout
from backlogctl.values import Recovery, RecoveryState
from tests.kit.recoveries import make_recovery
from tests.replay.runbooks.desks import (
    MYSTERY,
    QUIET,
    RUN,
    TOPIC_ID,
    lose,
    make_rebuild,
    name_states,
    open_shop,
    store_unknown,
)

ACTIONS = (AUTO, *KINDS.names())
_REDRIVES = ("source", "offsets", "key", "where", "to", "everything")
_OTHERS = ("order", "factor", "rate", "try_one", "gaps", "discard", "allow")
OPTIONS = ("since", "until", *_OTHERS, *_REDRIVES)
FIELDS = ("stream", "action", *OPTIONS, "note", "recovery", "answer_within")


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return open_shop(tmp_path_factory.mktemp("form"))


def read(desk: Workspace, **form: Any) -> RecoveryRequest:
    return read_request(desk, {"stream": "orders", **form})


def refuse(desk: Workspace, **form: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        read(desk, **form)
    return caught.value


def read_kinds(desk: Workspace, request: RecoveryRequest) -> tuple[ExpandOptions, RebuildOptions]:
    """What each kind is asked for."""
    stream = desk.config.stream(request.stream)
    return (
        read_options(ExpandOptions, choose_options(EXPAND, request.said), desk.config, stream),
        read_options(RebuildOptions, choose_options(REBUILD, request.said), desk.config, stream),
    )


def test_the_options_are_those_of_the_kinds() -> None:
    assert {name for _, name, _ in list_fields(KINDS)} == set(OPTIONS)


def test_an_empty_form_takes_what_is_configured(desk: Workspace) -> None:
    untouched = {name: None for name in FIELDS if name != "stream"}
    assert read(desk) == read(desk, **untouched) == RecoveryRequest("orders")
    blank = {"action": "", "since": " ", "order": BY_STREAM, "factor": "", "rate": "", "note": ""}
    assert read(desk, **blank) == RecoveryRequest("orders")
    assert read_kinds(desk, read(desk)) == (ExpandOptions(), RebuildOptions())


def test_every_field_is_taken_as_it_is_meant(desk: Workspace) -> None:
    request = read(
        desk,
        action="auto",
        since="2026-11-21T08:00",
        until="2026-11-21T08:00:00Z",
        order="round_robin",
        factor=10.0,
        rate=12.5,
        note=" INC-4711 ",
        recovery="r-20261121-0007",
        answer_within="1h30m",
    )
    assert (request.action, request.note) == ("auto", "INC-4711")
    assert (request.recovery, request.answer_within) == ("r-20261121-0007", timedelta(minutes=90))
    expand, rebuild = read_kinds(desk, request)
    # Without a zone it is the source's own time: Shanghai is eight hours ahead.
    assert rebuild.since == datetime(2026, 11, 21, 0, 0, tzinfo=UTC)
    assert rebuild.until == datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
    assert (expand.rate, expand.factor, expand.order) == (12.5, 10, "round_robin")
    assert isinstance(expand.factor, int)


def test_an_unknown_stream_names_the_nearest(desk: Workspace) -> None:
    error = refuse(desk, stream="ordres")
    assert (error.subject, error.hint) == ("stream ordres", "the nearest is orders")
    assert "stream" in refuse(desk, stream=None).subject


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("stream", [7, ["orders"], {"name": "orders"}, True, "orders\0", "x" * 501]),
        ("action", ["siphon", "expand; rm -rf /", 1, ["expand"], "AUTO\0"]),
        ("order", ["random", "key,round_robin", 3, {"order": "key"}]),
        ("since", ["yesterday", "2026-13-01", "25:00", 1763700000, [], "0001-01-01T00:00+14:00"]),
        ("until", ["soon", "9999-12-31T23:59:59-14:00", False, "2026-11-21T08:00:00+99:00"]),
        (
            "factor",
            [
                0,
                -1,
                1.5,
                MAX_FACTOR + 1,
                "10",
                True,
                [],
                10**9,
                10**5000,
                math.nan,
                math.inf,
                [10],
                {},
            ],
        ),
        (
            "rate",
            [0, -0.1, "fast", "10", True, {}, 10**400, 10**5000, math.nan, math.inf, -math.inf],
        ),
        ("note", [["a"], 5, "x" * 501, "bell \a", "half \ud800", "\x00"]),
        ("recovery", [7, "../../etc/passwd", "r 1", "a" * 65, "'; DROP TABLE x; --"]),
        ("answer_within", ["soon", "0s", "-1h", 60, "1e3s", "366d", "9" * 4000 + "d", "2 h"]),
    ],
)
def test_nonsense_is_refused_by_the_fields_name(
    desk: Workspace, field: str, values: list[Any]
) -> None:
    for value in values:
        error = refuse(desk, **{field: value})
        assert field in error.subject, (field, value)
        assert len(str(error)) < 800


def test_an_option_of_another_action_is_not_left_out_without_a_word(desk: Workspace) -> None:
    """With a key, and without the action that reads it, all would be put back."""
    for action, field, value, owner in (
        ("auto", "key", ["k1"], "redrive"),
        ("rebuild", "where", "key = 'k1'", "redrive"),
        ("rebuild", "factor", 10, "expand"),
        ("redrive", "gaps", ["g-1"], "rebuild"),
        ("auto", "discard", True, "offload"),
        ("offload", "to", "rehearsal", "rebuild or redrive"),
    ):
        error = refuse(desk, action=action, **{field: value})
        assert (error.subject, error.message) == (field, f"the action {action} has no such option")
        assert error.hint.endswith(f"the action {owner}")
    assert read(desk, action="rebuild", discard=False, key=[], where=" ", gaps=[""]).said == {}


def test_what_one_action_needs_or_allows_is_asked_of_it_alone(desk: Workspace) -> None:
    assert read(desk, action="rebuild", allow=["surplus"]).said == {"allow": ["surplus"]}
    assert read(desk, action="redrive", allow=["replays"]).said == {"allow": ["replays"]}
    assert read(desk, action="offload", allow=["other-groups:audit"]).action == "offload"
    for action, word in (("redrive", "surplus"), ("rebuild", "disk"), ("auto", "replays")):
        error = refuse(desk, action=action, allow=[word])
        assert (error.subject, error.message) == ("allow", f"{word!r} is not known")


def test_a_list_is_one_a_line(desk: Workspace) -> None:
    for value in (["k 1", " k,2 ", ""], "k 1\n\nk,2\n", ("k 1", "k,2")):
        assert read(desk, action="redrive", key=value).said == {"key": ["k 1", "k,2"]}
    many = [str(n) for n in range(1001)]
    for wrong in ([7], [["k"]], {"k": 1}, 7, True, ["x" * 501], ["half \ud800"], many):
        assert refuse(desk, action="redrive", key=wrong).subject == "key"


def test_a_form_names_no_file(desk: Workspace) -> None:
    """It would be one of the worker's, and whoever may trigger a run could ask what is in it."""
    for value in (["@/etc/passwd"], "k1\n @keys.txt"):
        error = refuse(desk, action="redrive", key=value)
        assert error.subject == "key"
        assert "names a file" in error.message


def test_a_form_of_one_kind_asks_for_it_and_no_other(desk: Workspace) -> None:
    kinds = desk.kinds.select(["offload"])
    assert read_request(desk, {"stream": "orders"}, kinds).action == "offload"
    for action in ("auto", "rebuild"):
        with pytest.raises(UsageError) as caught:
            read_request(desk, {"stream": "orders", "action": action}, kinds)
        assert (caught.value.subject, caught.value.hint) == ("action", "one of offload")
    with pytest.raises(UsageError, match="no field 'key'"):
        refuse_unknown({"stream": "orders", "key": ["k1"]}, kinds)


def test_auto_takes_neither_a_offload_nor_a_redrive() -> None:
    assert [kind.name for kind in KINDS if kind.is_suggested] == ["expand", "rebuild"]


def test_since_is_before_until(desk: Workspace) -> None:
    at = "2026-11-21T08:00:00Z"
    for since in (at, "2026-11-21T08:00:01Z", "2026-11-21T16:00:00+08:00"):
        error = refuse(desk, since=since, until=at)
        assert (error.subject, error.message) == ("since", "is not before `until`")
    request = read(desk, since="2026-11-21T07:59:59Z", until=at)
    assert request.said == {"since": "2026-11-21T07:59:59Z", "until": at}


def test_markup_in_a_note_is_text_and_a_password_is_not_kept(tmp_path: Path) -> None:
    note = "<script>alert(1)</script> | [x](http://evil) `$(id)` **b**\nand so on"
    desk = open_shop(tmp_path)
    assert read(desk, note=note).note == note
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
    secret = replace(desk, config=Config.from_text(text, tmp_path, {"PASS": "hunter2hunter2"}))
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
    desk: Workspace, form: Mapping[str, Any], known: bool
) -> None:
    form = {**form, "stream": "orders"} if known else form
    request, subject = None, ""
    try:
        request = read_request(desk, form)
    except UsageError as error:
        subject = error.subject
    if request is None:
        assert any(name in subject for name in FIELDS)
        return
    assert request.stream == "orders"
    assert request.action in ACTIONS
    expand, rebuild = read_kinds(desk, request)
    assert expand.order in (None, *ORDERS)
    assert not (rebuild.since and rebuild.until) or rebuild.since < rebuild.until
    json.dumps([request.note, expand.factor, expand.rate], allow_nan=False).encode()


def test_an_empty_text_in_the_shell_is_not_taken_for_nothing_said(desk: Workspace) -> None:
    """`--since "$SINCE"` without the variable: a bound that is dropped would be another plan."""
    stream = desk.config.stream("orders")
    for said in ({"since": ""}, {"until": ""}):
        with pytest.raises(UsageError, match="is not a time"):
            read_options(RebuildOptions, said, desk.config, stream, "--{}".format)
    with pytest.raises(UsageError):
        read_options(ExpandOptions, {"order": ""}, desk.config, stream)
    with pytest.raises(UsageError):
        read_options(ExpandOptions, {"start": ""}, desk.config, stream)


S = RecoveryState
CONSOLE = Console(quiet=True)
NIGHT = name_origin("nightly_backfill", "scheduled__2026-11-21")
# How it may stand in the ledger.
STATES: tuple[tuple[S, ...], ...] = (
    (),
    (S.APPROVED,),
    (S.APPROVED, S.RUNNING),
    (S.APPROVED, S.RUNNING, S.PAUSED),
    (S.APPROVED, S.RUNNING, S.FAILED),
    (S.APPROVED, S.RUNNING, S.VERIFIED),
    (S.APPROVED, S.CANCELLED),
    (S.REJECTED,),
)
UNDER_WAY = STATES[:5]
Act = Callable[[Workspace, Recovery], Any]


@pytest.fixture
def mystery_desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A stream that may start a recovery by itself, whose looks and plans need no Kafka."""

    class Seen:
        class sample:  # noqa: N801 - as the observation has it
            topic_id = TOPIC_ID

    def look(workspace: Workspace, stream: Any) -> tuple[Any, dict[str, Any]]:
        words = {"verdict": "losing", "course": "losing", "sentence": "told", "warnings": []}
        return Seen, {**QUIET, **words, "lag": 10, "lost": None, "seconds_to_loss": None}

    def plan(*_: Any, **named: Any) -> Recovery:
        return make_recovery(make_rebuild(), id="r-of-ours")

    monkeypatch.setattr(detection, "sample_stream", look)
    monkeypatch.setattr(nights, "plan_rebuild", plan)
    for kind in KINDS:
        monkeypatch.setattr(type(kind), "make_plan", plan)
    return open_shop(tmp_path, auto_plan=True)


def find_named(kind: str) -> Act:
    def find(mystery_desk: Workspace, recovery: Recovery) -> Recovery:
        request = RecoveryRequest("orders", recovery=recovery.id)
        return find_or_plan(mystery_desk, request, kind, RUN)

    return find


GIVEN: dict[str, Act] = {
    "subject": describe_subject,
    "body": describe_body,
    "carry on": lambda mystery_desk, recovery: carry_on(mystery_desk, recovery.id, CONSOLE),
    "restore": lambda mystery_desk, recovery: restore_layout(
        mystery_desk, recovery.id, console=CONSOLE
    ),
    **{f"plan {name}": find_named(name) for name in (*KINDS.names(), MYSTERY)},
}


@pytest.mark.parametrize("states", STATES, ids=name_states)
@pytest.mark.parametrize("name", GIVEN)
def test_what_is_given_it_refuses(
    mystery_desk: Workspace, name: str, states: tuple[S, ...]
) -> None:
    """By the one sentence of the registry, in any state; nothing is changed."""
    for origin in (None, RUN):
        recovery = store_unknown(mystery_desk, *states, origin=origin)
        before = read_all_of(mystery_desk, recovery)
        with pytest.raises(Refused) as caught:
            GIVEN[name](mystery_desk, recovery)
        error = caught.value
        assert error.message == f"this program does not know the kind {MYSTERY}"
        assert error.subject == f"recovery {recovery.id}"
        assert "the version of backlogctl that planned it" in error.hint
        assert read_all_of(mystery_desk, recovery) == before
        if states in UNDER_WAY:
            break  # one of a topic at a time


def look_again(mystery_desk: Workspace) -> tuple[Any, ...]:
    stream = mystery_desk.config.stream("orders")
    found = detect_backlog(mystery_desk, stream)
    return found.under_way, found.actions, should_plan(mystery_desk, stream, found)


PASSING: dict[str, Callable[[Workspace], Any]] = {
    "detect": look_again,
    "actions": lambda mystery_desk: choose_actions(
        mystery_desk, mystery_desk.config.stream("orders"), Verdict.LOSING, 10, TOPIC_ID
    ),
    "declined": lambda mystery_desk: find_declined(
        mystery_desk, mystery_desk.config.stream("orders")
    ),
    "night": lambda mystery_desk: find_night_work(
        mystery_desk, mystery_desk.config.stream("orders"), utc_now(), NIGHT
    ),
    "left open": list_left_open,
    "plan": lambda mystery_desk: find_or_plan(
        mystery_desk, RecoveryRequest("orders"), "rebuild", RUN
    ),
}


@pytest.mark.parametrize("states", STATES, ids=name_states)
@pytest.mark.parametrize("name", PASSING)
def test_what_passes_it_by_leaves_it_alone(
    mystery_desk: Workspace, name: str, states: tuple[S, ...]
) -> None:
    recovery = store_unknown(mystery_desk, *states)
    lose(mystery_desk)
    before = read_all_of(mystery_desk, recovery)
    PASSING[name](mystery_desk)
    assert read_all_of(mystery_desk, recovery) == before


@pytest.mark.parametrize("states", STATES, ids=name_states)
def test_nothing_is_begun_beside_it(mystery_desk: Workspace, states: tuple[S, ...]) -> None:
    """It counts as work that is under way, until it is at its end."""
    recovery = store_unknown(mystery_desk, *states)
    lose(mystery_desk)
    under_way, actions, starts = look_again(mystery_desk)
    night = find_night_work(mystery_desk, mystery_desk.config.stream("orders"), utc_now(), NIGHT)
    assert actions == ("expand", "rebuild")
    assert list_left_open(mystery_desk) == ()
    if states in UNDER_WAY:
        assert (under_way, starts) == ((recovery.id,), False)
        assert night.action is Tonight.NOTHING
        assert night.why == f"its {MYSTERY} {recovery.id} is {name_states(states)}"
    else:
        assert (under_way, starts) == ((), True)
        assert (night.action, night.recovery) == (Tonight.ASK, "r-of-ours")


def read_all_of(mystery_desk: Workspace, recovery: Recovery) -> tuple[Any, ...]:
    """All that the ledger has of it."""
    return (
        mystery_desk.ledger.recoveries.get(recovery.id),
        mystery_desk.ledger.events.list(recovery.id),
        mystery_desk.ledger.steps.list(recovery.id),
        mystery_desk.ledger.leases.holder(recovery.id),
    )


def test_the_last_task_reports_it_among_others(mystery_desk: Workspace) -> None:
    """One that nobody here can read does not hide the outcome of the rest."""
    outcome = describe_outcome(mystery_desk, store_unknown(mystery_desk))
    assert (outcome["kind"], outcome["state"], outcome["counts"]) == (MYSTERY, "planned", None)
