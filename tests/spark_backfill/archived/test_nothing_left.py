"""A plan of archived messages that has nothing to send: whether its gaps can be waived."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from backlog.errors import PutBackAlready, Refused
from backlog.values import Gap
from spark_backfill.archived.choosing import Chosen, Taken
from spark_backfill.archived.planning import require_archived
from spark_backfill.request import RebuildRequest
from tests.backlog.ledger.makers import make_gap

DONE = {0: Taken(messages=10, put_back=10)}


def ask(*gaps: Gap, rows: tuple[Gap, ...] = ()) -> RebuildRequest:
    made = SimpleNamespace(stream=SimpleNamespace(name="orders"), gaps=rows, archived=gaps)
    return cast("RebuildRequest", made)


def test_all_put_back_names_each_gap_to_waive() -> None:
    gaps = [make_gap(0, 10), make_gap(20, 30)]
    with pytest.raises(PutBackAlready) as caught:
        require_archived(ask(*gaps), Chosen(taken=DONE))
    assert "of 10 archived messages 10 were put back" in caught.value.message
    for gap in gaps:
        assert f'backlogctl waive {gap.id} --reason "put back already"' in caught.value.hint


def test_what_is_not_put_back_for_sure_is_a_plain_refusal() -> None:
    gap = make_gap(0, 10)
    for request, chosen in (
        (ask(gap), Chosen(taken={0: Taken(messages=10, put_back=9, quarantined=1)})),
        (ask(gap), Chosen(taken=DONE, gone=1)),
        (ask(gap, rows=(gap,)), Chosen(taken=DONE)),
    ):
        with pytest.raises(Refused) as caught:
            require_archived(request, chosen)
        assert type(caught.value) is Refused
    require_archived(ask(gap), Chosen(taken=DONE, slots={0: 1}))
