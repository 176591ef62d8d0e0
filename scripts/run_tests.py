"""Runs pytest in two processes; the few tests that fail get one more go, alone.

    python scripts/run_tests.py [arguments of pytest]

A test that failed for want of time on a busy machine passes alone, on services started anew. What
is wrong fails again. More than `MOST` failures are no chance, and get no second go. Apache Kafka
judges its changes in the same way (maxTestRetries and maxTestRetryFailures in its build.gradle).
Which tests needed it stands at the end, and why they failed stands above, with their first go.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

MOST = 4

# Of its own: what a person's last run left in pytest's cache is not run again here.
_CACHE = Path("build/tests")
_FAILED = 1  # pytest's exit code for "ran whole, some failed"


def main(arguments: Sequence[str]) -> int:
    """Returns pytest's exit code; that of the second go, where there was one."""
    code = _run_pytest("--cache-clear", "-n", "2", "--dist", "loadfile", *arguments)
    failed = _list_failed() if code == _FAILED else []
    if not failed:
        return code
    if len(failed) > MOST:
        print(f"\n{len(failed)} failed, more than {MOST}: no second go", flush=True)
        return code
    print(f"\nonce more, alone: {len(failed)} that failed\n", flush=True)
    code = _run_pytest("--last-failed", "--last-failed-no-failures", "none", *arguments)
    again = _list_failed() if code else []
    for test in failed:
        result = "failed twice" if test in again else "passed alone, after it had failed"
        print(f"{result}: {test}", flush=True)
    return code


def _run_pytest(*arguments: str) -> int:
    command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={_CACHE}", *arguments]
    process = subprocess.Popen(command)
    signal.signal(signal.SIGTERM, lambda number, frame: process.send_signal(number))
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue  # pytest had it too: it stops its services, and says so


def _list_failed() -> list[str]:
    kept = _CACHE / "v/cache/lastfailed"
    return sorted(json.loads(kept.read_text())) if kept.exists() else []


if __name__ == "__main__":
    os.environ.pop("PYTEST_XDIST_WORKER", None)
    sys.exit(main(sys.argv[1:]))
