"""What an audit keeps of a table while it works is gone afterwards, also where it was killed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from backlogctl.replay.audits.audit import sweep_folders


def test_what_killed_audits_left_goes_and_what_works_stays(tmp_path: Path) -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    host = socket.gethostname()
    names = {
        f"audit-{host}-{done.pid}-abc": False,
        f"audit-{host}-{os.getpid()}-abc": True,
        f"audit-else-where-{done.pid}-abc": True,
        f"audit-old-host-{done.pid}-abc": False,
        "r-20261124-0001": True,
        "audit-notes": True,
    }
    for name in names:
        (tmp_path / name / "consumed").mkdir(parents=True)
        (tmp_path / name / "consumed" / "part-0.parquet").write_text("o-1")
    os.utime(tmp_path / f"audit-old-host-{done.pid}-abc", (1, 1))
    sweep_folders(tmp_path)
    assert {name: (tmp_path / name).exists() for name in names} == names
