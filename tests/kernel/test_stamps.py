"""Message ids are the same for the same row and differ for any other."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from backlogctl.errors import BacklogError, PlanStale
from backlogctl_delivery.stamps import find_header, make_message_id, stamp

PARTS = st.lists(st.none() | st.text(max_size=4), min_size=1, max_size=3)


@given(PARTS, st.text(max_size=4), PARTS, st.text(max_size=4))
def test_ids_are_equal_only_for_equal_parts(
    key: list[str | None], version: str, other_key: list[str | None], other_version: str
) -> None:
    same = make_message_id("t", key, version) == make_message_id("t", other_key, other_version)
    assert same == ((key, version) == (other_key, other_version))


def test_an_id_is_stable_over_releases() -> None:
    assert make_message_id("orders", ["7"], "v") == "dff0b13459d66bfebe23ffbb7ba89f00"


def test_our_headers_follow_the_streams_own() -> None:
    headers = stamp(
        [("type", b"OrderPaid")],
        message_id="m",
        recovery_id="r-1",
        original_time="t",
        fidelity="restated",
    )
    assert [name for name, _ in headers] == [
        "type",
        "backlog-message-id",
        "backlog-recovery-id",
        "backlog-original-time",
        "backlog-fidelity",
        "backlog-replays",
    ]
    assert find_header(headers, "backlog-replays") == "1"
    assert find_header(headers, "absent") is None


def test_errors_cross_process_borders() -> None:
    error = PlanStale("changed", subject="topic orders", hint="plan again", retryable=True)
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, BacklogError)
    assert (type(copy), copy.to_json()) == (type(error), error.to_json())
