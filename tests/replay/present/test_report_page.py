"""The incident report as a page and a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backlogctl.errors import BacklogError, UsageError
from backlogctl.replay.cli import main
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.present.progress import thin
from backlogctl.replay.present.report import make_report
from backlogctl.replay.present.report_page import render_page, write_whole
from tests.replay.expand_makers import store_expand_plan
from tests.replay.makers import open_desk, store_plan
from tests.replay.report_makers import Page, note, put_back, report

SECRET = "hunter2-of-the-shop"
HOSTILE = "<script>alert(1)</script>"


def test_the_page_needs_nothing_else_and_escapes_names(desk: Workspace) -> None:
    planned = store_plan(desk, warnings=[HOSTILE, f"`{HOSTILE}`"], other_groups=[HOSTILE])
    note(desk, planned.id, HOSTILE, message=HOSTILE)
    page = render_page(make_report(desk, planned.id))
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 5
    for tag, attributes in Page(page).tags:
        assert tag not in ("script", "link", "iframe", "img", "object", "base", "form")
        for name in ("src", "href", "action"):
            assert (attributes.get(name) or "#").startswith("#")
        assert not [name for name in attributes if name.startswith("on")]
    assert "url(" not in page.replace("url(#", "")
    assert "@import" not in page
    assert "default-src 'none'" in page


def test_secrets_are_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", SECRET)
    url = "postgresql+psycopg://shop:${env:SHOP_PASSWORD}@db/shop"
    desk = open_desk(tmp_path, sources={"shop": {"url": url}})
    planned = store_expand_plan(desk, stopped=[f"processes `serve --password {SECRET}`"])
    note(desk, planned.id, "said", message=f"tried {SECRET}")
    document, page = report(desk, planned)
    assert SECRET not in json.dumps(document) + page.text
    assert "***" in page.text


def test_a_very_long_record_is_cut_in_the_middle(desk: Workspace) -> None:
    planned = store_plan(desk)
    for number in range(300):
        note(desk, planned.id, "said", message=f"note {number}")
    document, page = report(desk, planned)
    assert document["timeline"]["left_out"] == 61
    assert len(document["timeline"]["lines"]) == 240
    assert "61 lines are left out here" in page.text
    assert "note 299" in page.text


def test_thinning_keeps_both_ends() -> None:
    found = thin(range(5_000), 400)
    assert (found[0], found[-1], len(found)) == (0, 4_999, 400)
    assert thin(range(7), 400) == list(range(7))


def test_a_file_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "report.html"
    target.write_text("before")

    def fail(self: Path, other: Path) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", fail)
        with pytest.raises(BacklogError, match="No space left"):
            write_whole(target, "after")
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]
    link = tmp_path / "link.html"
    link.symlink_to(target)
    write_whole(link, "after")
    assert link.is_symlink()
    assert target.read_text() == "after"
    for wrong in (tmp_path, Path("/dev/null"), tmp_path / "none" / "report.html"):
        with pytest.raises(UsageError):
            write_whole(wrong, "x")


def test_the_verb(
    desk: Workspace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    recovery = put_back(desk).id
    assert main(["report", recovery, "--html", "out.html"]) == 0
    assert (tmp_path / "out.html").read_text().startswith("<!doctype html>")
    assert capfd.readouterr().out.strip() == "wrote out.html"
    assert main(["report", recovery, "--html", "-"]) == 0
    assert capfd.readouterr().out.startswith("<!doctype html>")
    assert main(["report", recovery]) == 0
    assert "hash chain verified" in capfd.readouterr().out
    assert main(["report", recovery, "--html", "."]) == 2
    assert "it is a directory" in capfd.readouterr().err
