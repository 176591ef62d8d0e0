"""What a night audits, and what is told of it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from backlog.config import load_config
from backlog.errors import BacklogError
from replay.audits import AUDITS
from replay.audits.audit import AuditOptions, AuditResult, Finding, Level
from replay.runbooks.auditing import NightAudit, describe, is_alarming, list_night_audits

_FILE = """
ledger: sqlite:///ledger.db
clusters: {main: {bootstrap.servers: "localhost:9092"}}
streams:
  orders: {cluster: main, topic: orders, group: g, audits: [consumed, sequence]}
  logs: {cluster: main, topic: logs, group: g}
  mails: {cluster: main, topic: mails, group: g, audits: [producers]}
"""


def test_audits_are_those_of_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "backlog.yaml"
    file.write_text(_FILE)
    config = load_config(file, {})
    orders = (NightAudit("orders", "consumed"), NightAudit("orders", "sequence"))
    mails = (NightAudit("mails", "producers"),)
    assert list_night_audits(config, None) == (*orders, *mails)
    assert list_night_audits(config, ["mails", "logs"]) == mails
    with pytest.raises(BacklogError, match="nobody"):
        list_night_audits(config, ["nobody"])
    file.write_text(_FILE.replace("sequence", "sequences"))
    with pytest.raises(BacklogError, match="sequence"):
        load_config(file, {})


def test_the_configuration_knows_every_audit(tmp_path: Path) -> None:
    file = tmp_path / "backlog.yaml"
    names = [one.name for one in AUDITS]
    file.write_text(_FILE.replace("[producers]", str(names)))
    assert [one.audit for one in list_night_audits(load_config(file, {}), ["mails"])] == names


@pytest.mark.parametrize(
    ("levels", "verdict", "alarms"),
    [
        ([], "clean", False),
        ([Level.NOTED], "clean", False),
        ([Level.UNKNOWN, Level.NOTED], "unknown", False),
        ([Level.SUSPECT, Level.UNKNOWN], "suspect", True),
        ([Level.UNKNOWN, Level.LOST], "lost", True),
    ],
)
def test_what_is_or_may_be_missing_is_an_event(
    levels: list[Level], verdict: str, alarms: bool
) -> None:
    findings = tuple(Finding("hole", level, f"it is {level}", count=3) for level in levels)
    at = datetime(2026, 11, 24, tzinfo=UTC)
    found = AuditResult("sequence", "orders", "orders", AuditOptions(), at, 1.0, {}, findings, "")
    told = describe(found)
    assert (told["verdict"], is_alarming(found)) == (verdict, alarms)
    assert told["missing"] == (3 if verdict == "lost" else 0)
    assert told["next"] == "backlogctl audit sequence orders"
