"""Runs inside the API server's container: on-call starts a recovery, a second person approves it.

    python airflow_client.py ACTION         rebuild or expand, of the stream `orders`

Prints one JSON document.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ADDRESS = "http://127.0.0.1:8080"
PASSWORDS = Path("/run/secrets/airflow_passwords.json")
_LIMIT_SECONDS = 600.0


def ask(path: str, user: str = "", data: Any = None, method: str = "") -> Any:
    headers = {"Content-Type": "application/json"}
    if user:
        login = {"username": user, "password": json.loads(PASSWORDS.read_text())[user]}
        headers["Authorization"] = f"Bearer {ask('/auth/token', data=login)['access_token']}"
    body = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(  # noqa: S310
        ADDRESS + path, body, headers, method=method or ("POST" if body else "GET")
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{path}: {error.code} {error.read()[:1000]!r}") from None


def recover(action: str) -> dict[str, Any]:
    """From the form to the run's end."""
    end = time.monotonic() + _LIMIT_SECONDS
    form = {"logical_date": None, "conf": {"stream": "orders", "action": action, "note": "check"}}
    started = ask("/api/v2/dags/recover_backlog/dagRuns", "oncall", form)
    run = f"/api/v2/dags/recover_backlog/dagRuns/{started['dag_run_id']}"
    question = f"{run}/taskInstances/{action}.approve"
    asked: dict[str, Any] = {}
    while True:
        now = ask(run, "oncall")
        tasks = ask(f"{run}/taskInstances", "oncall")["task_instances"]
        states = {task["task_id"]: task["state"] for task in tasks}
        if now["state"] in ("success", "failed") or time.monotonic() > end:
            break
        if not asked and states.get(f"{action}.approve") == "deferred":
            time.sleep(5)  # Airflow takes an answer once the task's process has ended
            asked = ask(f"{question}/-1/hitlDetails", "second")
            answer = {"chosen_options": ["Approve"], "params_input": {}}
            ask(f"{question}/-1/hitlDetails", "second", answer, "PATCH")
        time.sleep(2)
    found: dict[str, Any] = {"state": now["state"], "subject": asked.get("subject")}
    if now["state"] == "success":
        path = f"{run}/taskInstances/report/xcomEntries/return_value?deserialize=true"
        found["report"] = ask(path, "oncall")["value"]
    else:
        found["tasks"] = states
        failed = next((name for name, state in states.items() if state == "failed"), None)
        if failed:
            log = ask(f"{run}/taskInstances/{failed}/logs/1?full_content=true", "oncall")
            found["log"] = str(log)[-3000:]
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(recover(sys.argv[1])) + "\n")
