"""What needs Spark, as verbs from JSON to JSON: here, or in a driver that `spark-submit` started.

A submission is a folder that both sides share: what is asked, what came of it, and a file in which
the task counts as long as it waits. A driver whose task is gone stops between two waves.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from backlogctl.config import load_config, mask_secrets
from backlogctl.config.sections import SparkSection
from backlogctl.errors import BacklogError
from backlogctl.extras import explain_import
from backlogctl.manifests import write_synced
from backlogctl.replay.engine.brakes import INTERRUPTED, PausedBecause
from backlogctl.replay.engine.kind import Say, Workspace
from backlogctl.replay.engine.plan import Approver, RunOrigin, acting_as, mask_values
from backlogctl.replay.opening import open_workspace
from backlogctl.replay.runbooks.descriptions import carry_out_audit, describe_audit
from backlogctl.replay.runbooks.nights import Interval, plan_gaps
from backlogctl.replay.runbooks.requests import find_or_plan, read_request
from backlogctl.replay.runbooks.work import carry_on, make_task_console
from backlogctl_delivery.visible import escape_trace

Verb = Callable[[Workspace, Mapping[str, Any], Say], Any]


def _plan(workspace: Workspace, args: Mapping[str, Any], say: Say) -> str:
    request = read_request(workspace, args["form"])
    return find_or_plan(workspace, request, args["kind"], RunOrigin(**args["origin"]), say).id


def _plan_gaps(workspace: Workspace, args: Mapping[str, Any], say: Say) -> str:
    stream, within = workspace.config.stream(args["stream"]), args["lost_in"]
    lost_in = within and Interval(*map(datetime.fromisoformat, within))
    before = datetime.fromisoformat(args["before"])
    return plan_gaps(workspace, stream, before, RunOrigin(**args["origin"]), say, lost_in).id


def _carry_on(workspace: Workspace, args: Mapping[str, Any], _: Say) -> dict[str, Any]:
    console = make_task_console()
    return carry_on(workspace, args["recovery"], console, resumed=args["resumed"]).to_json()


def _audit(workspace: Workspace, args: Mapping[str, Any], say: Say) -> dict[str, Any]:
    stream = workspace.config.stream(args["stream"])
    return describe_audit(carry_out_audit(workspace, stream, args["audit"], say))


VERBS: Mapping[str, Verb] = {
    "plan": _plan,
    "plan_gaps": _plan_gaps,
    "carry_on": _carry_on,
    "audit": _audit,
}

# The folder of a submission.

APPLICATION, REQUEST, ALIVE, OUTCOME = "main.py", "request.json", "alive", "outcome.json"
# JSON of the fields of Airflow's connections that the configuration takes: secrets, so in no file.
CONNECTIONS = "BACKLOG_CONNECTIONS"
# How long a task may not count before its driver takes it for dead, by the driver's own clock.
SILENT_SECONDS = 60.0
_TICK = 0.5


def write_submission(folder: Path, request: Mapping[str, Any]) -> None:
    """What `main` needs. It is told its folder: a cluster may start a copy of the application.

    Args:
        request: `verb`, `args`, `approver`, `config` (a path), `spark` (the section).
    """
    own = f"from {__name__} import main\n\nmain({str(folder)!r})\n"
    write_synced(folder / APPLICATION, own)
    write_synced(folder / REQUEST, json.dumps(request))
    write_synced(folder / ALIVE, "")


def read_outcome(folder: Path) -> Any:
    """What the verb gave.

    Raises:
        FileNotFoundError: the driver has left no outcome.
        BacklogError: what the verb raised.
    """
    found = json.loads((folder / OUTCOME).read_text(encoding="utf-8"))
    if "error" in found:
        raise _read_error(found["error"])
    return found["value"]


def main(folder: str) -> None:
    """The driver: does what the folder asks for, and leaves the outcome there."""
    place = Path(folder)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    over = threading.Event()
    threading.Thread(target=stop_with_task, args=(place / ALIVE, over), daemon=True).start()
    outcome: dict[str, Any]
    try:
        outcome = {"value": _carry_out(json.loads((place / REQUEST).read_text(encoding="utf-8")))}
    except BacklogError as error:
        outcome = {"error": _write_error(error)}
    except KeyboardInterrupt:
        stopped = PausedBecause(INTERRUPTED, "its task was ended", hint="the next try goes on")
        outcome = {"error": _write_error(stopped)}
    except Exception as error:  # noqa: BLE001 whatever it is, it is masked
        outcome = {"error": _write_error(explain_import(error) or _explain_fault(error))}
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    over.set()
    if place.exists():
        write_synced(place / OUTCOME, json.dumps(outcome))
    sys.exit(int("error" in outcome))


def stop_with_task(alive: Path, over: threading.Event, silent: float = SILENT_SECONDS) -> None:
    """Once the task wants an end, or is gone: SIGTERM to this process, as a person would.

    Args:
        over: the work is done, and nobody need be stopped.
    """
    last, since = "", time.monotonic()
    while time.monotonic() - since < silent:
        try:
            now = alive.read_text(encoding="utf-8")
        except FileNotFoundError:
            break
        except OSError:  # a share that is away for a moment
            now = last
        if now != last:
            last, since = now, time.monotonic()
        if over.wait(_TICK):
            return
    os.kill(os.getpid(), signal.SIGTERM)


def _carry_out(request: Mapping[str, Any]) -> Any:
    fields = json.loads(os.environ.pop(CONNECTIONS, "{}"))
    config = load_config(Path(request["config"]), find_connection=fields.__getitem__)
    config = config.model_copy(update={"spark": SparkSection(**request["spark"])})
    with acting_as(Approver(**request["approver"])):
        return VERBS[request["verb"]](open_workspace(config), request["args"], _say)


def _say(text: str) -> None:
    print(escape_trace(mask_secrets(text)), flush=True)  # noqa: T201 the log of the driver


def _explain_fault(error: Exception) -> BacklogError:
    _say(traceback.format_exc())
    return BacklogError(
        f"a fault of the program, its traceback is in the driver's log: "
        f"{type(error).__name__}: {error}"
    )


def _write_error(error: BacklogError) -> dict[str, Any]:
    """By its own fields: not every error can be pickled, or made again by its constructor."""
    fields = json.loads(json.dumps(vars(error), default=str))
    return {"kind": type(error).__name__, "fields": mask_values(mask_secrets, fields)}


def _read_error(document: Mapping[str, Any]) -> BacklogError:
    kinds: list[type[BacklogError]] = [BacklogError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    # One that only the driver has imported is no refusal: its `retryable` says enough.
    named = (kind for kind in kinds if kind.__name__ == document["kind"])
    kind, fields = next(named, BacklogError), document["fields"]
    error = kind.__new__(kind)
    BacklogError.__init__(error, fields["message"])
    error.__dict__.update(fields)
    return error
