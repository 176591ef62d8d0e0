"""Kafka's own tools, which are in Java, and a group of Kafka Streams."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backlogctl.clock import Deadline
from backlogctl.jars import ensure_jars, find_java
from backlogctl.kafka.raw_client import Coordinators, RawClient, translate_properties
from backlogctl.sandbox import embedded
from backlogctl.sandbox.embedded import ensure_kafka_jars

_TOOLS = Path(__file__).with_name("kafka-tools.jars")


def name_tools() -> str:
    """The class path of Kafka's tools, and of Connect."""
    # The broker's first: they are those of its archive of classes, which halves a tool's work.
    return os.pathsep.join(map(str, (*ensure_kafka_jars(), *ensure_jars(_TOOLS))))


def write_script(path: Path, name: str) -> Path:
    """A shell script that runs a tool, such as `AclCommand`, or `ConfigCommand` of the broker."""
    package = "kafka.admin" if name == "ConfigCommand" else "org.apache.kafka.tools"
    options = (
        f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:SharedArchiveFile={embedded._CLASS_ARCHIVE} "
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    )
    path.write_text(
        f'#!/bin/sh\nexec {find_java()} {options} -cp {name_tools()} {package}.{name} "$@"\n'
    )
    path.chmod(0o755)
    return path


def run_line(line: str, directory: Path, place: Path | None = None) -> str:
    """Runs a command line as a shell would, with the directory's scripts first on the PATH.

    Args:
        place: where it runs; else there.
    """
    done = subprocess.run(
        line,
        shell=True,
        cwd=place or directory,
        env={**os.environ, "PATH": f"{directory}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    return done.stdout


_NAMES = ("StreamsGroupHeartbeatRequest", "StreamsGroupHeartbeatResponse")
_PACKAGE = "streams_group_schemas"
_SECONDS = 60.0


def join_streams_group(
    properties: Mapping[str, str], group: str, topic: str, offsets: Mapping[int, int], folder: Path
) -> None:
    """A member joins, commits, and stays until its session ends, 45 s later.

    Args:
        folder: for the schemas.
    """
    request_of = _load(folder)
    settings, _ = translate_properties(dict(properties))
    assert settings is not None
    limit = Deadline(_SECONDS)
    with RawClient(settings, limit) as client:
        client.run(lambda: _join(client, request_of, group, topic, offsets), limit)


async def _join(
    client: RawClient, request_of: Any, group: str, topic: str, offsets: Mapping[int, int]
) -> None:
    from kafka.errors import for_code
    from kafka.protocol.consumer import OffsetCommitRequest

    node = await Coordinators(client).find(group)
    member = str(uuid.uuid4())
    subtopology = {
        "subtopology_id": "0",
        "source_topics": [topic],
        "source_topic_regex": [],
        "state_changelog_topics": [],
        "repartition_sink_topics": [],
        "repartition_source_topics": [],
        "copartition_groups": [],
    }
    topology_of = request_of.Topology
    request = request_of(
        group_id=group,
        member_id=member,
        member_epoch=0,
        endpoint_information_epoch=0,
        rebalance_timeout_ms=30_000,
        topology=topology_of(epoch=0, subtopologies=[topology_of.Subtopology(**subtopology)]),
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
        process_id="process",
        client_tags=[],
    )
    joined = await client.send(request, node)
    if joined.error_code:
        raise for_code(joined.error_code)(joined.error_message)
    topic_of = OffsetCommitRequest.OffsetCommitRequestTopic
    part_of = topic_of.OffsetCommitRequestPartition
    parts = [
        part_of(partition_index=number, committed_offset=offset, committed_leader_epoch=-1)
        for number, offset in offsets.items()
    ]
    commit = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=joined.member_epoch,
        member_id=member,
        topics=[topic_of(name=topic, partitions=parts)],
        min_version=9,
        max_version=9,
    )
    for one in (await client.send(commit, node)).topics:
        for part in one.partitions:
            if part.error_code:
                raise for_code(part.error_code)()


def _load(folder: Path) -> Any:
    from kafka.protocol.api_message import ApiMessage

    package = folder / _PACKAGE
    package.mkdir(exist_ok=True)
    (package / "__init__.py").touch()
    (jar,) = (one for one in ensure_kafka_jars() if "kafka-clients-" in one.name)
    with zipfile.ZipFile(jar) as archive:
        for name in _NAMES:
            text = archive.read(f"common/message/{name}.json").decode()
            lines = (line for line in text.splitlines() if not line.strip().startswith("//"))
            (package / f"{name}.json").write_text("\n".join(lines))
    sys.path.insert(0, str(folder))
    try:
        made = [type(ApiMessage)(name, (ApiMessage,), {}, load_json=_PACKAGE) for name in _NAMES]
    finally:
        sys.path.remove(str(folder))
    _KEPT.extend(made)  # kafka-python holds the response's class weakly
    return made[0]


_KEPT: list[Any] = []
