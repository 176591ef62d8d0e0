"""The points of an expansion, after each numbered step (protocol P4); see `backlog.crashpoints`."""

from __future__ import annotations

# Of the runner's process.
RUNNER_POINTS = (
    "p4.2.raised",
    "p4.3.stopped",
    "p4.4.created",
    "p4.7.canary.relayed",
    "p4.7.canary.started",
    "p4.5.guard.joined",
    "p4.6.relays.started",
    "p4.7.consumers.started",
    "p4.8.relays.stopped",
    "p4.9.fenced",
    "p4.9.drained",
    "p4.8.consumers.stopped",
    "p4.9.guard.left",
    "p4.9.originals.started",
    "p4.9.retention.given_back",
    "p4.10.verified",
    "p4.9.deleted",
)
# Of a relay's process.
RELAY_POINTS = (
    "p4.6.init.after",
    "p4.6.produce.middle",
    "p4.6.produce.after",
    "p4.6.offsets.after",
    "p4.6.commit.after",
)
