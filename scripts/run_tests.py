"""Runs pytest in several processes; the few tests that fail get one more go, alone.

    python scripts/run_tests.py [--all | --quick] [--record-durations] [arguments of pytest]

`--all` runs those of tests/long.txt too: whole stories, each beside a shorter one. `--quick` leaves
out all stories and what takes long to start. `--record-durations` writes tests/durations.json, by
which the work is shared: on a quiet machine, after tests were added.

A test that failed for want of time on a busy machine passes alone, on services started anew. Real
faults fail again. More than `MOST` failures are no coincidence, and get no second go. Apache Kafka
judges its changes in the same way (maxTestRetries and maxTestRetryFailures in its build.gradle).
Which tests needed it stands at the end, and why they failed stands above, with their first go.
Tests of exactly-once have no second go: a message that is doubled or lost once in a hundred runs
is what they are there to find.
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
EXACTLY_ONCE = (
    "tests/crash/",
    "tests/delivery/test_idempotent_killed.py",
    "tests/delivery/test_idempotent_databases.py",
    "tests/delivery/test_idempotent_sql.py",
    "tests/fanout/relay/",
    "tests/replay/offload/",
    "tests/replay/expand/",
    "tests/replay/redrive/",
    "tests/replay/test_across_offload.py",
    "tests/replay/test_across_kinds.py",
    "tests/test_demos.py",
    "tests/test_three_brokers.py",
    "tests/replay/test_recovery.py",
    "tests/spark_backfill/archive/",
    "tests/spark_backfill/injection/",
)

# Two for each core: a test waits for others half of the time.
_PROCESSES = min(2 * (os.cpu_count() or 1), 8)
# A cache of its own: failures of an interactive run are not repeated here.
_CACHE = Path("build/tests")
_FAILED = 1  # pytest's exit code for "ran whole, some failed"


def main(arguments: Sequence[str]) -> int:
    """Returns pytest's exit code; that of the second go, where there was one."""
    if "--all" not in arguments and not any("::" in word for word in arguments):
        os.environ["LEAVE_OUT_LONG"] = "1"
    arguments = [word for word in arguments if word != "--all"]
    code = _run_pytest("--cache-clear", "-n", str(_PROCESSES), "--dist", "loadfile", *arguments)
    failed = _list_failed() if code == _FAILED else []
    if not failed:
        return code
    if len(failed) > MOST:
        print(f"\n{len(failed)} failed, more than {MOST}: no second go", flush=True)
        return code
    if final := [test for test in failed if test.startswith(EXACTLY_ONCE)]:
        print("\nno second go where messages must be there exactly once:", *final, sep="\n  ")
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
            continue  # pytest got it too: it stops its services and reports


def _list_failed() -> list[str]:
    kept = _CACHE / "v/cache/lastfailed"
    return sorted(json.loads(kept.read_text())) if kept.exists() else []


if __name__ == "__main__":
    os.environ.pop("PYTEST_XDIST_WORKER", None)
    sys.exit(main(sys.argv[1:]))
