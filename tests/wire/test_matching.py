"""Rows of tables beside the batches of a log, which another writer has made."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backlogctl.kafka.batches import scan_batches
from backlogctl.values import OffsetRange
from backlogctl.wire.matching import RowMatcher, hash_column
from tests.wire.test_encoding import make_table
from tests.wire.test_routing import Record, build, records

OURS = ("id", "recovery")
pieces = st.lists(records, min_size=1, max_size=4)
codecs = st.sampled_from(("none", "gzip", "lz4"))
HUGE: Record = (5, b"k", b"x" * 500_000, ())


def name_each(found: Sequence[Record]) -> list[Record]:
    return [
        (time, key, value, (*headers[:1], ("id", str(number).encode()), *headers[1:]))
        for number, (time, key, value, headers) in enumerate(found)
    ]


def is_exact(
    tables: Sequence[Sequence[Record]], log: Sequence[Sequence[Record]], codec: str = "none"
) -> bool:
    """Each of `log` is a batch, and an answer of its own."""
    matcher, base = RowMatcher(map(make_table, map(list, tables)), OURS), 0
    for one in log:
        batch = build(one, codec, base)
        place = OffsetRange(0, 0, 2**40)
        headers = scan_batches(batch).headers
        if not matcher.take(headers, (memoryview(batch),), place, "topic orders"):
            return False
        base += len(one)
    return matcher.is_at_end()


def cut(found: Sequence[Record], sizes: Sequence[int]) -> list[Sequence[Record]]:
    ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
    return [found[a:b] for a, b in zip([0, *ends], [*ends, len(found)], strict=True) if a < b]


@settings(deadline=None)
@given(
    records,
    st.lists(st.integers(1, 9), max_size=4),
    st.lists(st.integers(1, 9), max_size=4),
    codecs,
)
def test_the_same_rows_in_their_order_are_exact(
    found: list[Record], tables: list[int], batches: list[int], codec: str
) -> None:
    """However they are cut; what has none of the headers lies between and is nobody's business."""
    ours = name_each(found)
    mixed = [one for pair in zip(ours, found, strict=True) for one in pair]
    for log in (ours, mixed):
        assert is_exact(cut(ours, tables), cut(log, batches), codec)


@settings(deadline=None)
@given(records, st.data())
def test_anything_else_is_not(found: list[Record], data: st.DataObject) -> None:
    ours = name_each(found)
    at = data.draw(st.integers(0, len(ours) - 1))
    time, key, value, headers = ours[at]
    changed: list[Record] = data.draw(
        st.sampled_from(
            [
                [],
                [ours[at], ours[at]],
                [ours[at], (time, key, value, (("recovery", b"another"),))],
                [(time, key, (value or b"") + b".", headers)],
                [(time, b"" if key is None else None, value, headers)],
                [(time, key, b"" if value is None else None, headers)],
                [(time, key, value, (*headers, ("more", None)))],
                [(time, key, value, tuple((n, b"?" if n == "id" else v) for n, v in headers))],
            ]
        )
    )
    log = [*ours[:at], *changed, *ours[at + 1 :]]
    assert not is_exact([ours], [log] if log else [])
    assert not is_exact([[*ours, (5, b"k", b"v", (("id", b"more"),))]], [ours])


def test_a_large_message_and_an_empty_table() -> None:
    ours = name_each([HUGE, HUGE])
    assert is_exact([[], ours[:1], [], ours[1:], []], [ours], "lz4")
    assert is_exact([], [[HUGE]])
    assert not is_exact([], [ours])


@pytest.mark.parametrize("names", [["a", "b", "a"], ["", "x" * 5_000, ""]])
def test_equal_texts_have_equal_numbers(names: list[str]) -> None:
    import pyarrow as pa

    one, two, three = hash_column(pa.table({"message_id": pa.array(names)}), "message_id").tolist()
    assert one == three != two
