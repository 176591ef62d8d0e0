"""The archive's benchmark: an archive is put back by a redrive, exactly once, and read back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from backlog.config import load_config
from backlog.kafka.admin import create_topic
from benchmarks.relay_run import PARTITIONS, SOURCE
from replay.kinds import REDRIVE
from replay.kinds.redrive.options import RedriveOptions
from replay.opening import open_workspace
from replay.recovery.approval import approve_plan
from replay.recovery.runner import Run

if TYPE_CHECKING:
    from backlog.archive import ArchiveManifest
    from sandbox.embedded import EmbeddedKafka

TARGET = "put-back"
_TEXT = """\
ledger: sqlite:///ledger.db
staging: {dir: ./staging}
clusters:
  main: {bootstrap.servers: "@SERVERS@"}
streams:
  bench:
    cluster: main
    topic: @TOPIC@
    group: bench
    limits: {max_messages: 100000000}
"""


def redrive(
    kafka: EmbeddedKafka, manifest: ArchiveManifest, place: Path, scratch: Path
) -> Mapping[str, Any]:
    """All of an archive into a topic of its own: messages a second of each part, by the clock."""
    create_topic(
        {"bootstrap.servers": kafka.bootstrap}, TARGET, partitions=PARTITIONS, replication=1
    )
    file = scratch / "backlog.yaml"
    file.write_text(_TEXT.replace("@SERVERS@", kafka.bootstrap).replace("@TOPIC@", SOURCE))
    workspace = open_workspace(load_config(file))
    stream = workspace.config.stream("bench")
    ledger = workspace.ledger
    offload = ledger.recoveries.create(
        *("offload", stream.name, stream.cluster, stream.topic, stream.group),
        *({}, "0" * 64, (), "bench"),
        id=manifest.recovery_id,
        stops_consumers=True,
        holds_when_failed=True,
    )
    ledger.archives.record(
        offload.id,
        stream=stream.name,
        cluster=stream.cluster,
        topic=stream.topic,
        topic_id=manifest.topic_id,
        location=str(place),
        manifest_sha256=manifest.sha256(),
        messages=manifest.count,
        bytes=manifest.bytes,
        ranges=manifest.ranges,
    )
    options = RedriveOptions(source=f"archive:{offload.id}", everything=True, to=TARGET)
    began = ledger.now()
    recovery = REDRIVE.make_plan(workspace, stream, options)
    planned = (ledger.now() - began).total_seconds()
    approve_plan(workspace, recovery, by="bench")
    Run(workspace, recovery.id, Console(quiet=True)).carry_out()
    seconds = {
        step.step: (step.completed_at - step.first_started_at).total_seconds()
        for step in ledger.steps.list(recovery.id)
        if step.completed_at is not None
    }
    done = ledger.recoveries.get(recovery.id)
    return {
        "messages": done.injected,
        "state": str(done.state),
        "plan_seconds": round(planned, 1),
        "inject_seconds": round(seconds["inject"], 1),
        "verify_seconds": round(seconds["verify"], 1),
        "plan_per_second": round(manifest.count / planned),
        "inject_per_second": round(manifest.count / seconds["inject"]),
        "verify_per_second": round(manifest.count / seconds["verify"]),
    }
