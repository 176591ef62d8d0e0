"""What each of several pytest processes runs: whole files, those that take minutes first.

Each process starts services of its own. Asked for with `pytest -n 2 --dist loadfile`.
"""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import NodeManager

# Seconds that an interrupted process has before it is killed: it stops its services.
NodeManager.EXIT_TIMEOUT = 20

# What these share takes long to start: one process runs all of them.
_TOGETHER = ("tests/dags/",)

# Begun in this order, so that none of them is left to the end.
_LONGEST = (
    "tests/dags/",
    "tests/replay/test_recovery.py",
    "tests/replay/expand/",
    "tests/crash/",
    "tests/spark_backfill/",
    "tests/replay/",
    "tests/backlog/test_embedded.py",
)


def name_share(nodeid: str) -> str:
    """Tests of one share are run by one process, in their order."""
    path = nodeid.partition("::")[0]
    return next((folder for folder in _TOGETHER if path.startswith(folder)), path)


def rank_share(share: str) -> int:
    """The lowest is begun first."""
    return next((n for n, start in enumerate(_LONGEST) if share.startswith(start)), len(_LONGEST))


class Shares(LoadFileScheduling):  # type: ignore[misc]
    """xdist's way by file, with these shares in this order."""

    def _split_scope(self, nodeid: str) -> str:
        return name_share(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        self.workqueue.move_to_end(min(self.workqueue, key=rank_share), last=False)
        super()._assign_work_unit(node)
