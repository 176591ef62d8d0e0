"""What of a rebuilt message is compared with the log's, what is ignored, and what is told of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlogctl.spark_backfill.comparison import (
    Header,
    Ignoring,
    LogMessage,
    RebuiltMessage,
    advise_ignoring,
    compare_messages,
    cut_fields,
    describe_ignored,
)
from backlogctl.spark_backfill.proof import describe_unproved, places_rows
from backlogctl.spark_backfill.request import Proof

NOTHING = Ignoring()
TRACE: Header = ("traceparent", b"00-1-2-01")
LOG = LogMessage(b"7", 0, 7, b"7", b'{"id":7,"amount":"12.50"}', (("kind", b"paid"),))


def rebuild(log: LogMessage = LOG) -> RebuiltMessage:
    return RebuiltMessage(log.identity, log.partition, log.key, log.value, log.headers, None)


def compare(
    log: LogMessage, made: RebuiltMessage | None = None, ignoring: Ignoring = NOTHING,
    *, mutable: bool = False,
) -> Proof:  # fmt: skip
    pairs = [(log, made or rebuild())]
    return compare_messages(pairs, sampled=1, mutable=mutable, ignoring=ignoring)


def headed(*headers: Header) -> LogMessage:
    return replace(LOG, headers=(*LOG.headers, *headers))


def valued(value: bytes | None) -> LogMessage:
    return replace(LOG, value=value)


def test_fault_96_values_and_headers_say_nothing_of_where_a_row_was_sent() -> None:
    proof = compare(replace(valued(b"?"), headers=()))
    assert (proof.matched, proof.placed, places_rows(proof)) == (0, 1, True)
    assert describe_unproved(proof) == (
        "only 0 of 1 surviving messages agree, 1 in key and partition"
    )
    for other in (replace(LOG, partition=1), replace(LOG, key=b"8")):
        proof = compare(other)
        assert (proof.placed, places_rows(proof)) == (0, False)
        assert describe_unproved(proof) == "only 0 of 1 surviving messages agree"
    cannot = compare(LOG, replace(rebuild(), value=None, reason="its value is NULL"))
    assert (cannot.matched, cannot.placed) == (0, 1), "in quarantine, and its place is known"


@pytest.mark.parametrize(("said", "placed"), [(None, 1), (0, 1), (1, 0)])
def test_a_row_that_says_its_partition_is_held_to_it_without_a_key(
    said: int | None, placed: int
) -> None:
    proof = compare(replace(LOG, key=None), replace(rebuild(), key=None, partition=said))
    assert (proof.matched, proof.placed) == (placed, placed)


def test_a_plan_that_compared_nothing_or_did_not_count_places_nothing() -> None:
    nothing = compare_messages([], sampled=0, mutable=False)
    assert not places_rows(nothing)
    assert not places_rows(replace(compare(LOG), placed=None))


@pytest.mark.parametrize(
    "name",
    ["traceparent", "tracestate", "b3", "X-B3-TraceId", "x-b3-sampled", "uber-trace-id",
     "sentry-trace"],
)  # fmt: skip
def test_fault_96_a_trace_is_ignored_and_told(name: str) -> None:
    proof = compare(headed((name, b"1")))
    assert (proof.matched, proof.equal_headers, proof.differences) == (1, 1, ())
    assert describe_ignored(proof) == (
        f"the header {name} (tracing) differs in 1 of 1, and is ignored"
    )
    assert advise_ignoring(proof) == ""


def test_a_trace_that_the_rules_make_is_compared() -> None:
    made = replace(rebuild(), headers=(*LOG.headers, ("traceparent", b"of the row")))
    proof = compare(headed(TRACE), made)
    assert proof.matched == 0
    assert "traceparent is '00-1-2-01' in the log" in proof.differences[0].detail
    assert "`ignore_headers: [traceparent]`" in advise_ignoring(proof)
    assert compare(headed(TRACE), made, Ignoring(["trace*"])).matched == 1


def test_baggage_may_be_what_consumers_go_by() -> None:
    proof = compare(headed(("baggage", b"tenant=7")))
    assert proof.matched == 0
    assert advise_ignoring(proof) == (
        "the header baggage (tracing) differs in 1 of 1: add `ignore_headers: [baggage]` to "
        "`message` if consumers do not need it"
    )


@pytest.mark.parametrize("value", [b'{"id":7,"amount":"99.99"}', b"99.99", None])
def test_what_a_stream_masks_is_in_no_difference(value: bytes | None) -> None:
    """A plan keeps its differences: only names are told."""
    log = replace(LOG, key=b"secret-1", value=value, headers=(("kind", b"secret-2"),))
    pairs = [(replace(log, identity=b"secret-3"), rebuild())]
    shown = compare_messages(pairs, sampled=1, mutable=False, mask=["email", "key"])
    assert {one.what for one in shown.differences} == {"key", "value", "headers"}
    told = repr(shown.differences)
    assert "***" in told
    assert not [one for one in ("secret", "99.99", "12.50", "paid") if one in told]
    plain = compare_messages(pairs, sampled=1, mutable=False)
    assert "secret-1" in repr(plain.differences)


def test_patterns_tell_upper_from_lower_case() -> None:
    log = headed(("Request-Id", b"1"), ("request-id", b"2"))
    proof = compare(log, ignoring=Ignoring(["request-*"]))
    assert proof.matched == 0
    assert [(item.name, item.ignored) for item in proof.variations] == [
        ("request-id", True), ("Request-Id", False),
    ]  # fmt: skip
    assert compare(log, ignoring=Ignoring(["[rR]equest-*"])).matched == 1


def test_headers_that_are_left_keep_their_order_and_number() -> None:
    ignoring = Ignoring(["id"])
    twice = headed(("id", b"1"), ("kind", b"paid"))
    assert compare(twice, ignoring=ignoring).matched == 0
    made = replace(rebuild(), headers=(("id", b"2"), *LOG.headers))
    proof = compare(headed(("id", b"1")), made, ignoring)
    assert (proof.matched, [item.name for item in proof.variations]) == (1, ["id"])
    assert not compare(headed(("id", b"2")), made, ignoring).variations, "it does not differ"


@pytest.mark.parametrize(
    ("fields", "log", "rest"),
    [
        (["at"], '{"id":7,"at":1}', '{"id":7}'),
        (["at"], '{"at":1,"id":7}', '{"id":7}'),
        (["at"], '{"id": 7, "at": {"a": [1, "}"]}, "n": 12.50}', '{"id": 7, "n": 12.50}'),
        (["at"], '{ "at": 1, "id": 7 }', '{ "id": 7 }'),
        (["at"], '{\n  "id": 7,\n  "at": 1\n}\n', '{\n  "id": 7\n}\n'),
        (["at"], '{"at":1}', "{}"),
        (["at"], '{"a\\u0074":"\\"}","b\\\\":1}', '{"b\\\\":1}'),
        (["at"], '{"at":1,"at":2,"m":{"at":3}}', '{"m":{"at":3}}'),
        (["m.at"], '{"at":1,"m":{"at":3,"x":[]}}', '{"at":1,"m":{"x":[]}}'),
        (["m.at", "m.by"], '{"m": {"at": 3, "by": 4}}', '{"m": {}}'),
        (["m.at"], '{"m.at":1,"m":[{"at":1,"x":2},{"x":3},4]}', '{"m":[{"x":2},{"x":3},4]}'),
        (["at"], '[{"at":1,"x":2}, {"at":1}]', '[{"x":2}, {}]'),
        (["at"], "7", "7"),
        (["at"], '"at"', '"at"'),
        (["at"], "{}", "{}"),
    ],
)
def test_fields_are_cut_and_the_rest_stays_to_the_byte(
    fields: list[str], log: str, rest: str
) -> None:
    cut = cut_fields(log.encode(), fields)
    assert cut is not None
    assert cut.rest.decode() == rest


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "a.b"]), inner)
    ),
    max_leaves=12,
)


def leave_out(value: object, fields: list[str], path: str = "") -> object:
    if isinstance(value, dict):
        return {
            name: leave_out(item, fields, f"{path}{name}.")
            for name, item in value.items()
            if path + name not in fields
        }
    return [leave_out(item, fields, path) for item in value] if isinstance(value, list) else value


@given(JSON, st.lists(st.sampled_from(["a", "b", "a.b", "b.a", "a.a.b"])), st.booleans())
def test_any_json_without_fields_is_what_is_left_of_it(
    value: object, fields: list[str], pretty: bool
) -> None:
    raw = json.dumps(value, indent=2 if pretty else None).encode()
    cut = cut_fields(raw, fields)
    assert cut is not None
    assert json.loads(cut.rest) == leave_out(value, fields)
    if not cut.values:
        assert cut.rest == raw


@pytest.mark.parametrize("raw", [b"", b"{", b"\x00\xff", b"{'a': 1}", b"[" * 100_000])
def test_what_is_no_json_has_no_fields(raw: bytes) -> None:
    assert cut_fields(raw, ["a"]) is None


def test_fault_96_a_field_that_the_producer_adds_is_ignored_and_told() -> None:
    log = valued(b'{"sent_at":99,"id":7,"amount":"12.50"}')
    proof = compare(log, ignoring=Ignoring(fields=["sent_at"]))
    assert (proof.matched, proof.equal_values, proof.differences) == (1, 1, ())
    assert describe_ignored(proof) == "the field sent_at differs in 1 of 1, and is ignored"
    judged = compare(log)
    assert judged.matched == 0
    assert advise_ignoring(judged) == (
        "the field sent_at differs in 1 of 1: add `ignore_fields: [sent_at]` to `message` if "
        "consumers do not need it"
    )


@pytest.mark.parametrize(
    "value",
    [
        b'{"at":1,"id":7,"amount":12.50}',
        b'{"at":1, "id": 7, "amount":"12.50"}',
        b'{"at":1,"amount":"12.50","id":7}',
        b'{"at":1,"id":7.0,"amount":"12.50"}',
        b'{"at":1,"id":7,"amount":"12.5\\u0030"}',
    ],
)
def test_what_is_not_ignored_is_compared_to_the_byte(value: bytes) -> None:
    proof = compare(valued(value), ignoring=Ignoring(fields=["at"]))
    assert (proof.matched, proof.equal_values) == (0, 0)
    assert [item.name for item in proof.variations if item.ignored] == ["at"]
    assert "at is" not in proof.differences[0].detail


def test_a_value_that_is_no_json_is_said_to_be_none() -> None:
    ignoring = Ignoring(fields=["at"])
    for log, made, where in ((b"\x00\x07", b"{}", "in the log"), (b"{}", b"\x00", "rebuilt")):
        proof = compare(valued(log), replace(rebuild(), value=made), ignoring)
        assert proof.differences[0].detail.startswith(
            f"is not JSON {where}, as `ignore_fields` needs it, so nothing is ignored; differs "
        )
    same = compare(valued(b"\x07"), replace(rebuild(), value=b"\x07"), ignoring)
    assert (same.matched, same.variations) == (1, ())
    assert compare(valued(None), ignoring=ignoring).differences[0].detail.startswith("is NULL")


def test_fields_inside_are_told_by_their_path() -> None:
    log = valued(b'{"m":{"at":1,"x":[{"y":1}]},"id":7}')
    made = replace(rebuild(), value=b'{"m":{"at":2,"x":[{"y":2}]},"id":7}')
    assert {item.name for item in compare(log, made).variations} == {"m.at", "m.x.y"}


# The log's value, the rebuilt one, what is said, and the fields that could be ignored.
DIFFERENT = [
    ('{"a":12.50}', '{"a":12.5}', "a is 12.50 in the log, 12.5 rebuilt", {"a"}),
    ('{"a":1e3}', '{"a":1000.0}', "a is 1e3 in the log, 1000.0 rebuilt", {"a"}),
    ('{"a":-0.0}', '{"a":0.0}', "a is -0.0 in the log, 0.0 rebuilt", {"a"}),
    ('{"a":0.12345678901234567}', '{"a":0.12345678901234568}', "a is 0.12345678901234567 in", {"a"}),
    ('{"m":{"a":[1.0]}}', '{"m":{"a":[1]}}', 'm is {"a": [1.0]} in the log, {"a": [1]} re', {"m.a"}),
    ('{"a":"1"}', '{"a":1}', 'a is "1" in the log, 1 rebuilt', {"a"}),
    ('{"a":1,"a":2}', '{"a":2}', "a is 1 and 2 in the log, 2 rebuilt", {"a"}),
    ('{"a":{}}', '{"a":[]}', "a is {} in the log, [] rebuilt", {"a"}),
    ('{"m":{"a":1,"b":2}}', '{"m":{"b":2,"a":1}}', "differs in the order of fields, perhaps", set()),
    ('{"a": "\\u00fc"}', '{"a":"\u00fc"}', "differs in spacing or escapes only", set()),
]  # fmt: skip


@pytest.mark.parametrize(("log", "made", "told", "fields"), DIFFERENT)
def test_how_two_values_differ_is_said_of_what_is_written(
    log: str, made: str, told: str, fields: set[str]
) -> None:
    proof = compare(valued(log.encode()), replace(rebuild(), value=made.encode()))
    assert proof.differences[0].detail.startswith(told)
    assert {item.name for item in proof.variations} == fields


def test_headers_of_one_name_are_all_told() -> None:
    proof = compare(
        headed(("a", b"1"), ("a", b"3")),
        replace(rebuild(), headers=(*LOG.headers, ("a", b"2"), ("a", b"3"))),
    )
    assert proof.differences[0].detail == "a is '1' and '3' in the log, '2' and '3' rebuilt"


def test_where_much_differs_nobody_is_told_to_ignore_it() -> None:
    log = headed(*((f"h{number}", b"1") for number in range(6)))
    assert advise_ignoring(compare(log)) == ""


def test_where_rows_change_nothing_is_told_to_be_ignored() -> None:
    proof = compare(valued(b'{"id":8}'), mutable=True)
    assert (proof.matched, proof.equal_values, advise_ignoring(proof)) == (1, 0, "")


def test_names_are_written_as_yaml_and_patterns_read_them() -> None:
    proof = compare(headed(("a: [b]*", b"1")))
    (pattern,) = json.loads(
        advise_ignoring(proof).partition("ignore_headers: ")[2].partition("`")[0]
    )
    assert compare(headed(("a: [b]*", b"1")), ignoring=Ignoring([pattern])).matched == 1
