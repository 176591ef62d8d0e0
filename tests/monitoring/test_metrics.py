"""/metrics: every line is right, once, and escaped; a real Prometheus fires what it should."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from backlogctl.clock import utc_now
from backlogctl.errors import KafkaFailure, LedgerError
from backlogctl.ledger import Ledger, Owner
from backlogctl.monitoring.doctor.checks import CheckFinding, CheckLevel
from backlogctl.monitoring.metrics.catalogue import BY_NAME, CATALOGUE, Family
from backlogctl.monitoring.metrics.groups import escape_value
from backlogctl.monitoring.metrics.scrape import Exported, Scrape
from backlogctl.monitoring.verdict.status import (
    GroupStatus,
    HeldBack,
    PartitionStatus,
    Unseen,
    Verdict,
)
from backlogctl.monitoring.verdict.summary import summarize_group
from backlogctl.monitoring.watch.board import Board, Checkup, ClusterPass, MemberLook, SequenceLook
from backlogctl.monitoring.watch.board import TopicPartitionState as PartitionState
from backlogctl.sandbox.embedded import EmbeddedKafka
from backlogctl.values import GapState, RecoveryState
from backlogctl_delivery.visible import escape_name
from scripts.metrics_reference import render_reference
from tests.kit.kafka import StreamStub, expire_unread, properties_of, wait_until
from tests.kit.ledger import create_recovery
from tests.kit.processes import watching
from tests.kit.prometheus import LABELS, EmbeddedPrometheus, Scraped, run_promtool, scrape
from tests.monitoring.recorded import record_all
from tests.monitoring.test_rules import DASHBOARDS, FILES, list_targets

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
ALL: tuple[Family, ...] = ("kafka_exporter", "kafka_lag_exporter")
NOW = datetime(2026, 11, 21, tzinfo=UTC)


def make_part(number: int, committed: int | None, verdict: Verdict = Verdict.OK) -> PartitionStatus:
    lag = None if committed is None else 100 - committed
    return PartitionStatus(
        partition=number,
        log_start=0,
        committed=committed,
        end=100,
        lag=lag,
        lag_seconds=0.0 if lag == 0 else None,
        lost=None if committed is None else 0,
        verdict=verdict,
        course=verdict,
        seconds_to_loss=60.5 if verdict is Verdict.LOSING else None,
    )


PARTS = (make_part(0, 100), make_part(1, 40, Verdict.LOSING), make_part(2, None, Verdict.UNKNOWN))


def make_status(
    group: str = "service",
    topic: str = "orders",
    stream: str = "",
    cluster: str = "main",
    parts: tuple[PartitionStatus, ...] = PARTS,
) -> GroupStatus:
    return summarize_group(
        parts,
        stream=stream,
        cluster=cluster,
        topic=topic,
        group=group,
        group_state="stable",
        taken_at=utc_now(),
        written=[True] * len(parts),
    )


def make_pass(*groups: GroupStatus, cluster: str = "main", left_out: int = 0) -> ClusterPass:
    states = tuple(PartitionState(n, 0, 100, 1, 3, 2 if n == 1 else 3) for n in range(3))
    topics = {status.topic: states for status in groups}
    return ClusterPass(cluster, utc_now(), 0.25, groups, topics, 3, left_out)


def make_scrape(
    board: Board,
    ledger: Ledger,
    clusters: tuple[str, ...] = ("main",),
    others: tuple[Family, ...] = ALL,
    streams: Mapping[str, StreamStub] | None = None,
    *,
    by_partition: bool = True,
) -> Scrape:
    sent = {("team", "delivered"): 2, ("team", "failed"): 0}
    exported = Exported(streams or {}, clusters, others, lambda: sent, by_partition=by_partition)
    return Scrape(board, ledger, exported)


def scrape_recorded(ledger: Ledger, board: Board | None = None) -> Scraped:
    """A scrape after the ledger answered: a scrape waits a moment for it, and no longer."""
    source = make_scrape(board or Board(), ledger)
    wait_until(source.ledger.answers, 60, "the ledger answers")
    return scrape(source)


def test_a_group_and_a_stream_are_each_there_once(ledger: Ledger) -> None:
    board = Board()
    board.put_stream(make_status(stream="orders"))
    # The pass began before the configuration knew it as a stream: it is not shown twice.
    board.put_cluster(make_pass(make_status(), make_status("audit"), left_out=7))
    got = scrape(make_scrape(board, ledger))
    assert got.labels_of("backlog_verdict", "stream", group="service") == {"orders"}
    assert got.labels_of("backlog_verdict", "stream", group="audit") == {""}
    assert got.labels_of("backlog_verdict", "verdict") == {"losing"}
    assert got.by_partition("backlog_lag_messages", group="audit") == {0: 0, 1: 60}
    assert got.by_partition("backlog_lag_seconds", group="audit") == {0: 0}, "absent, not guessed"
    assert got.by_partition("backlog_seconds_to_loss", stream="orders") == {1: 60.5}
    assert got.labels_of("backlog_partition_verdict", "partition", group="audit") == {"1", "2"}
    assert got.labels_of("backlog_partition_course", "partition", group="audit") == {"1", "2"}
    assert got.value("backlog_partitions_left_out", cluster="main") == 7
    assert got.value("backlog_groups", cluster="main") == 2
    assert got.value("kafka_consumergroup_lag_sum", consumergroup="service") == 60
    assert got.by_partition("kafka_consumergroup_current_offset", consumergroup="audit") == {
        0: 100,
        1: 40,
    }
    assert got.value("kafka_brokers") == 3
    under = got.by_partition("kafka_topic_partition_under_replicated_partition")
    assert under == {0: 0, 1: 1, 2: 0}
    assert got.value("kafka_consumergroup_group_max_lag", group="audit") == 60
    assert got.value("kafka_consumergroup_group_sum_lag", group="service") == 60


def test_partitions_that_are_ok_are_one_series_of_all_but_streams(ledger: Ledger) -> None:
    board = Board()
    parts = (make_part(0, 100), make_part(1, 99), make_part(2, 40, Verdict.LOSING))
    board.put_cluster(make_pass(make_status("audit", "bills", parts=parts)))
    got = scrape(make_scrape(board, ledger, by_partition=False))
    lags = {"backlog_lag_messages": 61, "kafka_consumergroup_lag": 61}
    for name, lag in (*lags.items(), ("kafka_consumergroup_group_lag", 61)):
        series = got.find(name)
        assert sum(series.values()) == lag, "an aggregate is the same"
        assert [dict(key).get("partition") for key in series] == [None, "2"]
    assert set(got.find("backlog_lag_seconds").values()) == {0.0}
    high = got.find("kafka_topic_partition_current_offset")
    assert {dict(key).get("partition"): value for key, value in high.items()} == {
        None: 200,
        "1": 100,
    }
    board.put_stream(make_status("audit", "bills", stream="audit", parts=parts))
    got = scrape(make_scrape(board, ledger, by_partition=False))
    assert got.by_partition("backlog_lag_messages") == {0: 0, 1: 1, 2: 60}
    assert len(got.by_partition("kafka_topic_partition_leader")) == 3


def test_what_is_gone_from_the_board_is_gone_from_the_answer(ledger: Ledger) -> None:
    board = Board()
    source = make_scrape(board, ledger)
    board.put_cluster(make_pass(make_status("old"), make_status("kept")))
    assert scrape(source).labels_of("backlog_verdict", "group") == {"old", "kept"}
    board.put_cluster(make_pass(make_status("kept", parts=(make_part(0, 90),))))
    after = scrape(source)
    assert after.labels_of("backlog_verdict", "group") == {"kept"}
    assert after.by_partition("backlog_lag_messages") == {0: 10}


def test_only_the_names_asked_for_are_served(ledger: Ledger) -> None:
    board = Board()
    board.put_cluster(make_pass(make_status()))
    text = scrape(make_scrape(board, ledger, others=())).text
    assert "kafka_" not in text
    text = scrape(make_scrape(board, ledger, others=("kafka_lag_exporter",))).text
    assert "kafka_consumergroup_group_lag{" in text
    assert "kafka_consumergroup_lag{" not in text


def test_two_clusters_and_two_streams_of_one_place_make_no_series_twice(ledger: Ledger) -> None:
    board = Board()
    for cluster in ("east", "west"):
        board.put_cluster(make_pass(make_status(cluster=cluster), cluster=cluster))
    for stream in ("one", "two"):
        board.put_stream(make_status("shared", stream=stream, cluster="east"))
    got = scrape(make_scrape(board, ledger, ("east", "west")))
    assert got.labels_of("kafka_brokers", "cluster") == {"east", "west"}
    assert got.labels_of("backlog_verdict", "stream", group="shared") == {"one", "two"}
    assert len(got.find("kafka_consumergroup_lag_sum", consumergroup="shared")) == 1


def test_a_stream_that_is_seen_later_does_not_repeat_another(ledger: Ledger) -> None:
    board = Board()
    source = make_scrape(board, ledger)
    board.put_cluster(make_pass(make_status("shared"), make_status("audit")))
    scrape(source)
    for stream in ("two", "one"):
        board.put_stream(make_status("shared", stream=stream))
        got = scrape(source)  # a series that is there twice is an error
        assert len(got.find("kafka_consumergroup_lag_sum", consumergroup="shared")) == 1
    assert got.labels_of("backlog_verdict", "stream", group="shared") == {"one", "two"}


def test_a_partition_without_a_commit_does_not_take_the_other_exporters_sums(
    ledger: Ledger,
) -> None:
    board = Board()
    drained = (make_part(0, 100), make_part(1, None, Verdict.UNKNOWN))
    board.put_cluster(make_pass(make_status(parts=drained)))
    got = scrape(make_scrape(board, ledger))
    for name in (
        "kafka_consumergroup_lag_sum",
        "kafka_consumergroup_group_sum_lag",
        "kafka_consumergroup_group_topic_sum_lag",
    ):
        assert got.value(name) == 0
    assert got.value("kafka_consumergroup_current_offset_sum") == 100
    board.put_cluster(make_pass(make_status(parts=(make_part(0, None),))))
    assert not scrape(make_scrape(board, ledger)).find("kafka_consumergroup_lag_sum")


def test_messages_to_hooks_are_counted(ledger: Ledger) -> None:
    got = scrape(make_scrape(Board(), ledger))
    assert got.value("backlog_notifications_total", hook="team", outcome="delivered") == 2
    assert got.value("backlog_notifications_total", hook="team", outcome="failed") == 0


def test_nothing_is_never_minus_nothing(ledger: Ledger) -> None:
    board = Board()
    part = replace(make_part(0, 100), lag_seconds=-0.0, seconds_to_drain=-0.0)
    board.put_cluster(make_pass(make_status(parts=(part,))))
    assert "-0" not in scrape(make_scrape(board, ledger)).text


def fill_board() -> Board:
    """Something of every family."""
    board = Board()
    blind = Unseen("retention", KafkaFailure("access denied", subject="topic orders"))
    board.put_stream(replace(make_status(stream="orders"), unseen=(blind,)))
    board.put_members("orders", (MemberLook("worker-1", "/10.0.0.7", (0, 1), utc_now()),))
    finding = CheckFinding(
        "flush", CheckLevel.WARNS, "topic orders", "3 replicas, and flush.ms 1", ""
    )
    board.put_checkup("orders", Checkup(utc_now(), (finding,)))
    board.put_sequence("orders", SequenceLook("main", checked=9, lost=3, suspect=0, behind=0))
    held = HeldBack(offset=10, messages=7, since=utc_now(), seconds_open=90.0)
    losing = replace(make_part(0, 10, Verdict.LOSING), expected_loss=5, seconds_to_drain=9.0)
    losing = replace(losing, held=held)
    board.put_cluster(make_pass(make_status("audit", parts=(losing,))))
    return board


def test_promtool_accepts_every_name_but_two_of_another_exporter(ledger: Ledger) -> None:
    record_all(ledger)
    done = run_promtool("check", "metrics", stdin=scrape_recorded(ledger, fill_board()).text)
    told = [line.partition(" ")[0] for line in (done.stdout + done.stderr).splitlines()]
    assert told == ["kafka_consumergroup_current_offset_sum", "kafka_consumergroup_lag_sum"]


def test_every_name_and_label_is_in_the_catalogue(ledger: Ledger) -> None:
    record_all(ledger)
    text = scrape_recorded(ledger, fill_board()).text
    shown = set()
    for family in text_string_to_metric_families(text):
        if family.name.startswith("process_"):
            continue
        metric = BY_NAME[family.name]
        assert (family.type, family.documentation) == (metric.type, metric.help)
        for sample in family.samples:
            assert sample.name == metric.exported_name
            assert set(sample.labels) == set(metric.labels), sample
            shown.add(metric.name)
    assert shown == {metric.name for metric in CATALOGUE}


@given(st.text())
def test_any_label_value_reads_back(value: str) -> None:
    # Prometheus and its parsers take UTF-8; a lone surrogate is none.
    value = value.encode("utf-8", "ignore").decode()
    text = f'name{{label="{escape_value(value)}"}} 1\n'
    (family,) = text_string_to_metric_families(text)
    assert family.samples[0].labels == {"label": escape_name(value)}
    assert text.count("\n") == 1


def test_the_ledgers_figures(ledger: Ledger) -> None:
    ids = record_all(ledger)
    got = scrape_recorded(ledger)
    # The rebuild took one of the gaps.
    assert got.value("backlog_gaps", state="planned", cause="expired") == 1
    assert got.value("backlog_gap_messages", state="planned") == 30
    assert got.value("backlog_gap_messages", state="open") == 5
    rebuild, expand = ids["rebuild"], ids["expand"]
    assert got.labels_of("backlog_recovery_state", "state", recovery=rebuild) == {"running"}
    assert got.value("backlog_recovery_runner_alive", recovery=rebuild) == 1
    assert not got.find("backlog_recovery_runner_alive", recovery=expand)
    assert 0 <= got.value("backlog_recovery_state_seconds", recovery=rebuild) < 600
    assert got.value("backlog_quarantined_messages", recovery=rebuild) == 3
    assert got.value("backlog_recovery_progress_ratio", recovery=rebuild) == 0
    assert got.value("backlog_recovery_progress_ratio", recovery=expand) == 0.4
    assert got.value("backlog_relayed_messages", recovery=expand) == 60
    assert got.value("backlog_recovery_done_messages", recovery=expand) == 40
    assert not got.find("backlog_injected_messages", recovery=expand)
    assert got.labels_of("backlog_recovery_state", "stops_consumers", recovery=expand) == {"true"}
    assert got.labels_of("backlog_recovery_state", "stops_consumers", recovery=rebuild) == {"false"}
    assert 7199 < got.value("backlog_retention_overdue_seconds", stream="orders") < 7800
    assert got.value("backlog_retention_overdue_seconds", stream="bills") == 0
    assert got.value("backlog_retention_held_seconds", stream="bills") < 600


def test_a_recovery_is_told_of_by_what_it_does_and_not_by_its_kind(ledger: Ledger) -> None:
    record_all(ledger)
    (gap,) = ledger.gaps.list(states=[GapState.OPEN])
    made = create_recovery(
        ledger, "new", plan_hash="h", gaps=[gap.id], by="me", holds_when_failed=False
    )
    got = scrape_recorded(ledger)
    for name in ("backlog_recovery_state", "backlog_injected_messages"):
        assert got.labels_of(name, "stops_consumers", recovery=made.id) == {"true"}
        assert got.labels_of(name, "kind", recovery=made.id) == {"new"}


def test_a_runner_that_is_gone_is_not_alive(ledger: Ledger) -> None:
    owner = Owner.current()
    ids = record_all(ledger, owner)
    ledger.leases.release(ids["rebuild"], owner)
    got = scrape_recorded(ledger)
    assert got.value("backlog_recovery_runner_alive", recovery=ids["rebuild"]) == 0


def test_consumers_that_a_recovery_keeps_stopped_are_counted_until_they_are_back(
    ledger: Ledger,
) -> None:
    made = record_all(ledger)["expand"]
    name = "backlog_recovery_consumers_stopped"
    assert scrape_recorded(ledger).value(name, recovery=made) == 0  # it has not begun
    later = utc_now() + timedelta(hours=1)
    ledger.recoveries.approve(made, "me", "me", "h", later)
    ledger.leases.acquire(made, Owner.current(), timedelta(hours=1))
    ledger.recoveries.advance(made, RecoveryState.RUNNING, "me")
    assert scrape_recorded(ledger).value(name, recovery=made) == 0
    ledger.steps.start(made, "stop_consumers")
    ledger.recoveries.advance(made, RecoveryState.FAILED, "me")
    got = scrape_recorded(ledger)
    assert got.value(name, recovery=made) == 1
    assert got.value("backlog_temporary_topic_messages", recovery=made) == 10
    ledger.steps.start(made, "restore")
    assert scrape_recorded(ledger).value(name, recovery=made) == 1
    ledger.steps.complete(made, "restore")
    assert scrape_recorded(ledger).value(name, recovery=made) == 0


def test_of_ended_recoveries_only_a_streams_last_is_there(ledger: Ledger) -> None:
    made = [
        create_recovery(
            ledger, "rebuild", name, group="g", plan_hash="h", by="me", stops_consumers=False
        ).id
        for name in ("orders", "orders", "bills", "bills")
    ]
    # A new plan supersedes the one before it: that one is rejected.
    ledger.recoveries.advance(made[3], RecoveryState.REJECTED, "me")
    got = scrape_recorded(ledger)
    assert got.labels_of("backlog_recovery_state", "recovery") == {made[1], made[3]}


class Gone:
    """A ledger that does not answer."""

    def now(self) -> datetime:
        raise LedgerError("it is away", subject="ledger")

    def __getattr__(self, name: str) -> object:
        raise AssertionError(name)


def test_a_ledger_that_is_away_takes_nothing_else_with_it() -> None:
    board = Board()
    board.put_cluster(make_pass(make_status()))
    got = scrape(Scrape(board, Gone(), Exported({}, ("main",))))  # type: ignore[arg-type]
    assert got.value("backlog_ledger_up") == 0
    assert got.value("backlog_verdict", group="service") == 1
    assert "backlog_gaps" not in got.text


@pytest.mark.parametrize("skew", [timedelta(0), timedelta(hours=1), -timedelta(hours=1)])
def test_fault_41_ages_grow_by_one_clock_and_failures_count(
    ledger: Ledger, skew: timedelta
) -> None:
    now = 1000.0
    board = Board(lambda: now)
    board.put_stream(replace(make_status(stream="orders"), taken_at=utc_now() + skew))
    board.note_failure("main", "orders", "away")
    board.note_failure("main", "orders", "away")
    now += 300
    streams = {name: StreamStub(name, "g", name) for name in ("orders", "never-seen")}
    got: Scraped = scrape(make_scrape(board, ledger, streams=streams))
    for stream in ("orders", "never-seen", ""):
        assert got.value("backlog_sample_age_seconds", stream=stream) == 300
    assert got.value("backlog_sample_failures_total", stream="orders") == 2
    assert got.value("backlog_sample_failures_total", stream="never-seen") == 0


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == render_reference(), (
        "run: python -m scripts.metrics_reference > docs/metrics.md"
    )
    for word in (*Verdict, *LABELS):
        assert f"| `{word}` |" in render_reference()


# What the sequence check of `watch` cannot tell is absent from /metrics, never zero.


def test_what_the_sequence_check_cannot_tell_is_absent(ledger: Ledger) -> None:
    board = Board()
    board.put_sequence("early", SequenceLook("main", checked=9, behind=0))
    board.put_sequence("away", SequenceLook("main", lost=0, suspect=2, trouble="no broker"))
    got = scrape(make_scrape(board, ledger))
    missing = "backlog_sequence_missing_messages"
    assert got.find(missing, stream="early") == {}
    assert got.value("backlog_sequence_behind_messages", stream="early") == 0
    # Something may be missing that it has not seen.
    assert got.labels_of(missing, "certainty", stream="away") == {"suspect"}
    assert got.find("backlog_sequence_behind_messages", stream="away") == {}
    assert got.value("backlog_sequence_up", stream="away") == 0


OLD, READ = {0: 40, 1: 50}, {0: 10, 1: 50}


@pytest.mark.prometheus
def test_a_real_loss_fires_an_alert_with_the_next_command(
    kafka: EmbeddedKafka, topic: Callable[..., str], group: str, tmp_path: Path
) -> None:
    properties = properties_of(kafka.bootstrap)
    name = topic(partitions=2, config={"retention.ms": "-1"})
    document = {
        "ledger": f"sqlite:///{tmp_path}/ledger.db",
        "clusters": {"main": {"bootstrap.servers": kafka.bootstrap}},
        "watch": {"interval": "500ms", "window": "10s", "groups": {"allow": [group]}},
        "streams": {"orders": {"cluster": "main", "topic": name, "group": group}},
    }
    (tmp_path / "backlog.yaml").write_text(json.dumps(document))  # JSON is YAML
    with (
        watching(tmp_path) as running,
        EmbeddedPrometheus(tmp_path, running.url.removeprefix("http://"), FILES) as prometheus,
    ):
        wait_until(lambda: prometheus.query("backlog_verdict"), what="a verdict is scraped")
        assert prometheus.list_alerts("BacklogLost") == []

        expire_unread(properties, name, group, old=OLD, read=READ, young={0: 7, 1: 7})
        fired: list[dict[str, Any]] = []

        def fires() -> bool:
            # One scrape that comes too late, and it is silent until the next.
            fired[:] = prometheus.list_alerts("BacklogLost")
            return any(alert["state"] == "firing" for alert in fired)

        wait_until(fires, what="the alert fires")
        (alert,) = fired
        assert alert["labels"] == {
            "alertname": "BacklogLost",
            "severity": "page",
            "cluster": "main",
            "group": group,
            "topic": name,
            "stream": "orders",
        }
        notes = alert["annotations"]
        assert notes["summary"] == f"{group} lost up to 30 messages of {name}"
        assert notes["next_command"] == "backlogctl status orders"
        assert notes["runbook_url"].endswith("alerts.md#backloglost")

        # The dashboard shows the same.
        query = _find_query("Verdict")
        shown: list[list[str]] = []

        def shows() -> bool:
            shown.append([row["value"][1] for row in prometheus.query(query)])
            return bool(shown[-1])

        wait_until(shows, what="the dashboard shows it")
        assert shown[-1] == [str(Verdict.LOST.severity)]
        assert prometheus.list_rule_errors() == []


def _find_query(title: str) -> str:
    """The query of a panel of the stream's dashboard, for all groups."""
    board = next(board for board in DASHBOARDS if board["uid"] == "backlog-stream")
    exprs = [one["expr"] for panel, one in list_targets(board) if panel["title"] == title]
    return re.sub(r"\$\w+", ".*", exprs[0])
