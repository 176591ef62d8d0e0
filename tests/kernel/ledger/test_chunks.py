"""The copy of the chunks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from backlogctl.errors import Refused, UsageError
from backlogctl.ledger import ChunkRecord, Ledger
from backlogctl.values import ChunkState
from tests.kernel.ledger.conftest import change
from tests.kernel.ledger.makers import make_chunk, plan


def test_chunks_are_kept_and_marked_once(ledger: Ledger) -> None:
    recovery = plan(ledger)
    chunks = [make_chunk(slot, number) for slot in (0, 1) for number in (0, 3)]
    ledger.chunks.add_all(recovery.id, reversed(chunks))
    ledger.chunks.add_all(recovery.id, chunks)
    assert ledger.chunks.list(recovery.id) == tuple(
        ChunkRecord(chunk, ChunkState.STAGED) for chunk in chunks
    )
    assert ledger.chunks.mark_injected(recovery.id, 1, 3, 2**40, 2**40 + 499)
    assert ledger.recoveries.get(recovery.id).injected == 500, "in the same transaction"
    assert not ledger.chunks.mark_injected(recovery.id, 1, 3, 1, 2), "the first word stays"
    assert ledger.recoveries.get(recovery.id).injected == 500
    last = ledger.chunks.list(recovery.id)[-1]
    assert (last.state, last.first_offset, last.last_offset) == (
        ChunkState.INJECTED,
        2**40,
        2**40 + 499,
    )
    assert last.injected_at is not None
    with pytest.raises(UsageError, match="no such chunk"):
        ledger.chunks.mark_injected(recovery.id, 9, 9)


def test_chunk_is_not_replaced_by_another(ledger: Ledger, raw: Engine) -> None:
    recovery = plan(ledger)
    chunk = make_chunk(0, 0)
    ledger.chunks.add_all(recovery.id, [chunk])
    with pytest.raises(Refused, match="different content"):
        ledger.chunks.add_all(recovery.id, [make_chunk(0, 1), replace(chunk, sha256="cd" * 32)])
    assert len(ledger.chunks.list(recovery.id)) == 1
    ledger.chunks.mark_injected(recovery.id, 0, 0)
    for statement in (
        "UPDATE backlog_chunks SET sha256 = 'x'",
        "UPDATE backlog_chunks SET state = 'staged'",
        "DELETE FROM backlog_chunks",
    ):
        with pytest.raises(DBAPIError, match="backlog refuses"):
            change(raw, statement)
