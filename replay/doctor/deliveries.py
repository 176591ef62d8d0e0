"""Examines outboxes and look-back; each cluster of theirs is asked once whether it answers."""

from __future__ import annotations

from collections.abc import Iterator

from backlogctl.config import Config
from backlogctl.kafka.clients import reach_cluster
from backlogctl.monitoring.doctor.checks import (
    CheckFinding,
    UnreadablePart,
    endure,
    read_part,
    sort_findings,
)
from backlogctl.replay.doctor.look_back import judge_look_back
from backlogctl.replay.doctor.outboxes import judge_outbox
from backlogctl.replay.doctor.stream import Examination
from backlogctl.replay.engine.kind import Workspace


def examine_deliveries(workspace: Workspace) -> Iterator[Examination]:
    """Of those that are configured."""
    config = workspace.config
    away: dict[str, tuple[CheckFinding, ...]] = {}

    def ask(cluster: str) -> tuple[CheckFinding, ...]:
        """Why it does not answer; nothing where it does."""
        if cluster not in away:
            away[cluster] = _ask(config, cluster)
        return away[cluster]

    for name, outbox in config.outboxes.items():
        silent = ask(outbox.cluster)
        judged = judge_outbox(config, name, kafka_answers=not silent)
        found = endure(f"outbox {name}", "its examination", judged)
        yield Examination("outbox", name, sort_findings([*silent, *found]))
    if (look_back := config.look_back) is not None:
        silent = ask(look_back.cluster)
        judged = judge_look_back(config, look_back, kafka_answers=not silent)
        found = endure("look-back", "its examination", judged)
        yield Examination("look-back", "look-back", sort_findings([*silent, *found]))


def _ask(config: Config, cluster: str) -> tuple[CheckFinding, ...]:
    subject, properties = f"cluster {cluster}", config.clusters[cluster].client_properties()
    brokers = read_part(f"the brokers of {subject}", lambda: reach_cluster(properties, subject))
    return (brokers.to_finding(),) if isinstance(brokers, UnreadablePart) else ()
