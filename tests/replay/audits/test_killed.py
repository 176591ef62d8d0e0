"""An audit that is ended half way leaves nothing; what one that was killed left, the next removes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.kafka_tools import wait_until
from tests.replay.shop import Shop

pytestmark = pytest.mark.timeout(600)


def end_half_way(shop: Shop, number: signal.Signals) -> tuple[int, str, set[Path]]:
    """Once its copy of the table has a folder: the exit code, what it said, and the folders."""
    before = list_folders(shop)
    process = shop.start("audit", "consumed", shop.stream)
    wait_until(
        lambda: bool(list_folders(shop) - before) or process.poll() is not None,
        seconds=240,
        what="it reads the table",
    )
    process.send_signal(number)
    out, err = process.communicate(timeout=240)
    assert (out, "Traceback" in err) == ("", False), err
    assert shop.open().ledger.audits.list_latest() == ()
    return process.returncode, err, list_folders(shop)


def list_folders(shop: Shop) -> set[Path]:
    return set(shop.directory.glob("staging/audit-*"))


def test_an_audit_that_is_ended_leaves_nothing(shop: Shop) -> None:
    code, _, left = end_half_way(shop, signal.SIGKILL)
    assert (code, len(left)) == (-signal.SIGKILL, 1)
    for number in (signal.SIGTERM, signal.SIGINT):
        code, said, left = end_half_way(shop, number)
        assert (code, left) == (130, set())
        assert "interrupted" in said
