"""What the tasks of `nightly_audit` do."""

from __future__ import annotations

import logging
from typing import Any, cast

from airflow.sdk import Asset, AssetAlias, get_current_context

from backlogctl_airflow.acting import opened
from backlogctl_airflow.nights import await_window
from backlogctl_airflow.policies import ALERTS
from backlogctl_airflow.reasons import keep_reason
from replay.runbooks.auditing import carry_out_audit, describe, is_alarming, list_night_audits

LOG = logging.getLogger("backlogctl_airflow")


def list_audits() -> list[dict[str, str]]:
    """The audits of the streams that the run's conf names, or of every one."""
    context = get_current_context()
    with opened(context) as workspace:
        found = list_night_audits(workspace.config, context["params"].get("streams"))
    return [one.to_json() for one in found]


def audit(work: dict[str, str]) -> dict[str, Any]:
    """Audits one stream in its window; what is missing is an event of its asset."""
    context = get_current_context()
    name = f"{work['audit']} of {work['stream']}"
    cast("dict[str, Any]", context)["audited"] = name
    with opened(context) as workspace:
        stream = workspace.config.stream(work["stream"])
        await_window(context, stream)
        found = carry_out_audit(workspace, stream, work["audit"], LOG.info)
    told = describe(found)
    LOG.info("%s: %s: %s", name, told["verdict"], told["sentence"])
    keep_reason(context, f"{told['verdict']}: {told['sentence']}")
    if is_alarming(found):
        asset = Asset(
            name=f"backlog/{stream.name}", uri=f"backlogctl://{stream.cluster}/{stream.name}"
        )
        context["outlet_events"][AssetAlias(ALERTS)].add(asset, extra=told)
    return told
