"""The parts of Airflow that are not its public interface: all that the runbooks use of them.

They may change with any version. Each is imported where it is first used: the scheduler, a task and
the API server have different ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from importlib.metadata import version
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from packaging.version import Version

if TYPE_CHECKING:  # what `__getattr__` below gives, with its types
    from airflow.api_fastapi.app import API_ROOT_PATH as API_ROOT_PATH
    from airflow.api_fastapi.auth.managers.models.resource_details import (
        DagAccessEntity as DagAccessEntity,
    )
    from airflow.api_fastapi.core_api.security import GetUserDep as GetUserDep
    from airflow.api_fastapi.core_api.security import get_user as get_user
    from airflow.api_fastapi.core_api.security import requires_access_dag as requires_access_dag
    from airflow.dag_processing.bundles.local import LocalDagBundle as LocalDagBundle
    from airflow.models.dagrun import DagRun as DagRun
    from airflow.models.hitl import HITLDetail as HITLDetail
    from airflow.models.variable import Variable as Variable
    from airflow.models.xcom import XComModel as XComModel
    from airflow.providers.standard.triggers.hitl import HITLTrigger as HITLTrigger
    from airflow.sdk.execution_time.comms import (
        CreateHITLDetailPayload as CreateHITLDetailPayload,
    )
    from airflow.sdk.execution_time.comms import DagResult as DagResult
    from airflow.sdk.execution_time.comms import GetDag as GetDag
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS as SUPERVISOR_COMMS
    from airflow.sdk.execution_time.xcom import XCom as XCom
    from airflow.sdk.lineage import get_hook_lineage_collector as get_hook_lineage_collector
    from airflow.sdk.plugins_manager import (
        get_hook_lineage_readers_plugins as get_hook_lineage_readers_plugins,
    )
    from airflow.utils.session import create_session as create_session

# The lowest and the newest that `make test-airflow-versions` tries; docs/deployment.md says what
# was tried with each.
LOWEST, NEWEST = "3.3.0", "3.3.2"
_TOO_OLD = (
    "its tasks keep nothing from try to try, so that an answer it has accepted could be lost, and "
    "a variable that cannot be read looks like none"
)


class Side(StrEnum):
    """The process of Airflow that needs a part."""

    PROCESSOR = "DAG processor"
    TASK = "task"
    SCHEDULER = "scheduler"
    SERVER = "API server"
    LINEAGE = "task whose lineage is collected"


@dataclass(frozen=True)
class Part:
    """One name of a module. It holds from `since` to `NEWEST`.

    `since`: the first of 3.1.8, 3.2.0 and `LOWEST` that has it; `members`: what is used of it;
    `made_late`: the module has it only while a task runs.
    """

    module: str
    since: str
    side: Side
    purpose: str
    members: tuple[str, ...] = ()
    made_late: bool = False


_API, _SDK = "airflow.api_fastapi", "airflow.sdk.execution_time"
_RIGHTS = "asks who may see the page"
_LINEAGE = "says what it reads and writes"
_NAMES = "gives this Airflow its id"
_PAUSED = "asks whether a DAG is paused"
PARTS: Mapping[str, Part] = {
    "LocalDagBundle": Part(
        "airflow.dag_processing.bundles.local", "3.1.8", Side.PROCESSOR, "finds the runbooks"
    ),
    "CreateHITLDetailPayload": Part(
        f"{_SDK}.comms", "3.1.8", Side.TASK, "asks a person about a plan"
    ),
    "HITLTrigger": Part(
        "airflow.providers.standard.triggers.hitl",
        "3.1.8",
        Side.TASK,
        "waits for the answer, here and in the shell",
        ("_handle_response", "_handle_timeout"),
    ),
    "GetDag": Part(f"{_SDK}.comms", "3.2.0", Side.TASK, _PAUSED),
    "DagResult": Part(f"{_SDK}.comms", "3.2.0", Side.TASK, _PAUSED),
    "SUPERVISOR_COMMS": Part(
        f"{_SDK}.task_runner", "3.1.8", Side.TASK, _PAUSED, ("send",), made_late=True
    ),
    "XCom": Part(f"{_SDK}.xcom", "3.1.8", Side.TASK, "links to a recovery", ("get_value",)),
    "get_hook_lineage_collector": Part("airflow.sdk.lineage", "3.2.0", Side.LINEAGE, _LINEAGE),
    "get_hook_lineage_readers_plugins": Part(
        "airflow.sdk.plugins_manager", "3.2.0", Side.LINEAGE, _LINEAGE
    ),
    "DagRun": Part(
        "airflow.models.dagrun", "3.1.8", Side.SCHEDULER, "writes notes", ("dag_run_note", "note")
    ),
    "XComModel": Part(
        "airflow.models.xcom",
        "3.1.8",
        Side.SCHEDULER,
        "writes notes",
        ("get_many", "deserialize_value"),
    ),
    "Variable": Part("airflow.models.variable", "3.1.8", Side.SCHEDULER, _NAMES, ("id", "key")),
    "create_session": Part("airflow.utils.session", "3.1.8", Side.SCHEDULER, _NAMES),
    "HITLDetail": Part(
        "airflow.models.hitl",
        "3.1.8",
        Side.SERVER,
        "keeps the first of two answers",
        ("ti_id", "responded_at", "task_instance"),
    ),
    "API_ROOT_PATH": Part(f"{_API}.app", "3.1.8", Side.SERVER, "leads to the login"),
    "DagAccessEntity": Part(
        f"{_API}.auth.managers.models.resource_details", "3.1.8", Side.SERVER, _RIGHTS, ("RUN",)
    ),
    "GetUserDep": Part(f"{_API}.core_api.security", "3.1.8", Side.SERVER, _RIGHTS),
    "get_user": Part(f"{_API}.core_api.security", "3.1.8", Side.SERVER, _RIGHTS),
    "requires_access_dag": Part(f"{_API}.core_api.security", "3.1.8", Side.SERVER, _RIGHTS),
}


def __getattr__(name: str) -> Any:
    if name not in PARTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if lost := _find_lost(name):
        raise ImportError(_describe_lost(name, lost))
    return getattr(import_module(PARTS[name].module), name)


def find_airflow() -> str:
    """The version of the Airflow that is installed."""
    return version("apache-airflow-core")


def find_unsuited(side: Side) -> str:
    """Why nothing may be done with this Airflow; "" where nothing is known against it."""
    installed = find_airflow()
    if Version(installed) < Version(LOWEST):
        return f"Airflow {installed} is too old: {_TOO_OLD}. Use Airflow {LOWEST} or newer"
    mine = (name for name, part in PARTS.items() if part.side is side)
    return next((_describe_lost(name, lost) for name in mine if (lost := _find_lost(name))), "")


def describe_untried() -> str:
    """That nobody has tried the runbooks with this Airflow; "" where somebody has."""
    installed = find_airflow()
    if Version(installed) <= Version(NEWEST):
        return ""
    return (
        f"Airflow {installed} is newer than {NEWEST}, the last one that these runbooks were tried "
        "with: try them on a test system first, or look for a newer backlogctl"
    )


def _find_lost(name: str) -> str:
    """What this Airflow does not have of a part."""
    part = PARTS[name]
    full = f"{part.module}.{name}"
    try:
        module = import_module(part.module)
    except ImportError:
        return full
    if not hasattr(module, name):
        return "" if part.made_late else full
    missing = (member for member in part.members if not _has(getattr(module, name), member))
    return next((f"{full}.{member}" for member in missing), "")


def _has(owner: object, member: str) -> bool:
    try:
        attrgetter(member)(owner)
    except AttributeError:
        return False
    return True


def _describe_lost(name: str, lost: str) -> str:
    part = PARTS[name]
    return (
        f"Airflow {find_airflow()} has no {lost}, with which the {part.side} {part.purpose}: "
        f"use Airflow {LOWEST} to {NEWEST}, or a newer backlogctl"
    )
