"""A real Spark standalone master and worker on this machine, from PySpark's own jars.

What executors get of us is only what the driver ships: their Python has this environment's
libraries, and not our rooms, which an editable install puts on the path of its own interpreter.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import urllib.request
import venv
from pathlib import Path
from typing import Any, Self

import psutil
import pyspark

from backlogctl.sandbox.secured import HOST
from tests.kit.kafka import wait_until

ZOMBIES = "BACKLOG_TEST_ZOMBIES"
_HOME = Path(pyspark.__file__).parent
_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"
_UP_WITHIN = 180.0
# Executors' Python workers in sessions of their own outlive the executor, as on a machine that is
# cut off: the kernel hangs up stopped processes whose parents are gone, except these.
_ZOMBIES_CODE = f"""
import os, sys
if os.environ.get("{ZOMBIES}") and "pyspark.daemon" in sys.orig_argv:
    os.register_at_fork(after_in_child=os.setsid)
"""


class StandaloneSpark:
    """A master and one worker with two cores; they end with the tests."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started: list[subprocess.Popen[bytes]] = []
        self.master = self.page = ""
        self.python = directory / "executor" / "bin" / "python"

    def start(self) -> Self:
        """Starts both on free ports, and waits until the master has the worker's cores."""
        self._make_python()
        log = self._launch(
            "master", "deploy.master.Master", "--host", HOST, "--port", "0", "--webui-port", "0"
        )
        self.master = self._await(log, r"Starting Spark master at (spark://\S+)")
        # Its page's port is chosen too.
        port = self._await(log, r"service 'MasterUI' on port (\d+)")
        self.page = f"http://{HOST}:{port}/json/"
        self._launch(
            "worker",
            "deploy.worker.Worker",
            *("--host", HOST, "--port", "0", "--webui-port", "0", "--cores", "2"),
            *("--memory", "2g", "--work-dir", str(self._directory / "work"), self.master),
        )
        wait_until(lambda: self.read_state()["cores"] == 2, _UP_WITHIN, "the worker's cores")
        return self

    def conf(self, **more: str) -> dict[str, str]:
        """Settings of a session on this cluster."""
        return {
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.executor.memory": "700m",
            "spark.executor.extraJavaOptions": _JAVA,
            "spark.pyspark.python": str(self.python),
            "spark.sql.shuffle.partitions": "2",
            **more,
        }

    def read_state(self) -> dict[str, Any]:
        """The master's page."""
        with urllib.request.urlopen(self.page, timeout=60) as answer:
            state: dict[str, Any] = json.load(answer)
        return state

    def list_apps(self) -> list[str]:
        """Names of the applications that have or wait for executors."""
        return [app["name"] for app in self.read_state()["activeapps"]]

    def find_executors(self) -> list[psutil.Process]:
        """The executors' JVMs."""
        worker = psutil.Process(self._started[1].pid)
        return [p for p in _family(worker) if "CoarseGrainedExecutorBackend" in _words(p)]

    def find_tasks(self) -> list[psutil.Process]:
        """Python workers of all executors, without the daemons that fork them."""
        daemons = [p for jvm in self.find_executors() for p in _children(jvm)]
        return [task for daemon in daemons for task in _children(daemon)]

    def stop(self) -> None:
        """Ends both, and all that they started."""
        for process in reversed(self._started):
            with contextlib.suppress(psutil.NoSuchProcess):
                for member in [*_family(psutil.Process(process.pid))]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        member.send_signal(signal.SIGKILL)
            process.kill()
            process.wait(60)
        self._started.clear()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _make_python(self) -> None:
        venv.create(self.python.parents[1], with_pip=False, symlinks=True)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = self.python.parents[1] / "lib" / version / "site-packages"
        # A directory that a .pth file names is on the path; .pth files inside of it are not read.
        (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
        (packages / "sitecustomize.py").write_text(_ZOMBIES_CODE)

    def _launch(self, name: str, kind: str, *words: str) -> Path:
        away = self._directory / name
        away.mkdir()
        log = away / "log"
        keep = ("PATH", "HOME", "LANG", "JAVA_HOME", "TMPDIR")
        environment = {word: os.environ[word] for word in keep if word in os.environ}
        environment |= {
            "SPARK_HOME": str(_HOME),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _JAVA,
        }
        with log.open("wb") as output:
            self._started.append(
                subprocess.Popen(
                    [str(_HOME / "bin" / "spark-class"), f"org.apache.spark.{kind}", *words],
                    cwd=away,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )
        return log

    def _await(self, log: Path, pattern: str) -> str:
        found: list[str] = []

        def is_said() -> bool:
            assert self._started[-1].poll() is None, log.read_text()
            # The last line may be half of one.
            found.extend(re.findall(pattern, log.read_text().rpartition("\n")[0]))
            return bool(found)

        wait_until(is_said, _UP_WITHIN, pattern)
        return found[0]


def _family(process: psutil.Process) -> list[psutil.Process]:
    return list(process.children(recursive=True))


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children())
    except psutil.NoSuchProcess:
        return []


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
