"""What the sequence check of `watch` cannot tell is absent from /metrics, never zero."""

from __future__ import annotations

from pathlib import Path

from backlog.ledger import open_ledger
from monitoring.board import Board, SequenceLook
from tests.monitoring.metric_lines import scrape
from tests.monitoring.test_metrics import make_scrape


def test_what_the_sequence_check_cannot_tell_is_absent(tmp_path: Path) -> None:
    board = Board()
    board.put_sequence("early", SequenceLook("main", checked=9, behind=0))
    board.put_sequence("away", SequenceLook("main", lost=0, suspect=2, trouble="no broker"))
    with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        got = scrape(make_scrape(board, ledger))
    missing = "backlog_sequence_missing_messages"
    assert got.find(missing, stream="early") == {}
    assert got.value("backlog_sequence_behind_messages", stream="early") == 0
    # Something may be missing that it has not seen.
    assert got.labels_of(missing, "certainty", stream="away") == {"suspect"}
    assert got.find("backlog_sequence_behind_messages", stream="away") == {}
    assert got.value("backlog_sequence_up", stream="away") == 0
