"""Times that producers set, segments that retention goes by, and an examination that fails."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backlogctl.clock import utc_now
from backlogctl.kafka.clients import make_producer
from backlogctl.monitoring.doctor import group as judging
from backlogctl.monitoring.doctor.checks import CheckFinding, CheckLevel
from backlogctl.monitoring.doctor.facts import read_topic
from backlogctl.monitoring.doctor.timestamps import guess_unit
from backlogctl.replay.doctor import stream as examining
from tests.conftest import MakeTopic
from tests.kit.kafka import publish, set_config, set_offsets_raw
from tests.kit.shop import call_main
from tests.replay.doctor.world import examine, make_workspace

HOUR = 3_600_000
ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1)}
Look = Callable[..., dict[str, CheckFinding]]


def send(properties: dict[str, str], topic: str, *times_ms: float) -> None:
    """A message of each of these times, one behind the other."""
    producer = make_producer(properties)
    for at in times_ms:
        producer.produce(topic, b"value", b"key", 0, timestamp=int(at))
    assert producer.flush(30) == 0


@pytest.fixture
def look(properties: dict[str, str], topic: MakeTopic, group: str, tmp_path: Path) -> Look:
    """Sends, and examines the topic."""

    def look(*times_ms: float, **config: object) -> dict[str, CheckFinding]:
        own = {name.replace("_", "."): str(value) for name, value in config.items()}
        name = topic(partitions=1, config={**ANY_TIME, "retention.ms": str(4 * HOUR), **own})
        send(properties, name, *times_ms)
        set_offsets_raw(properties, group, name, {0: 0})
        return examine(make_workspace(tmp_path, properties, name, group))

    return look


@pytest.mark.parametrize(
    ("size", "found"),
    [
        (1e6, "is microseconds, and Kafka takes milliseconds"),
        (1e9, "is nanoseconds, and Kafka takes milliseconds"),
        (1e4, "that is no time of a calendar"),
    ],
)
def test_fault_92_timestamps_of_another_unit_are_told(look: Look, size: float, found: str) -> None:
    """And the other findings, too."""
    now = time.time()
    findings = look(*[now * 1000 for _ in range(3)], now * size * (1000 if size == 1e4 else 1))
    finding = findings["future-timestamps"]
    assert finding.level is CheckLevel.WARNS
    assert found in finding.found
    assert "replication-factor" in findings
    assert "examination" not in findings


def test_fault_92_only_times_that_nobody_can_read(look: Look) -> None:
    findings = look(*[time.time() * 1e6 for _ in range(5)])
    assert "future-timestamps" in findings
    assert "examination" not in findings


def test_fault_92_a_clock_that_is_ahead(look: Look) -> None:
    findings = look((time.time() + 3_580) * 1000)
    assert "is dated 59 min ahead of this host's clock" in findings["future-timestamps"].found


def test_a_unit_is_guessed_where_it_fits() -> None:
    now = utc_now().timestamp() * 1000
    assert [guess_unit(int(now * size), now) for size in (1e-3, 1.0, 1e3, 1e6)] == [
        *("seconds", "", "microseconds", "nanoseconds"),
    ]
    assert guess_unit(0, now) == guess_unit(2**63 - 1, now) == ""


def test_messages_that_had_expired_when_they_came(look: Look) -> None:
    """A backfill among newer ones: what lies behind a newer message came later than that."""
    now = time.time() * 1000
    finding = look(now, now - 5 * HOUR, now - 3 * HOUR, now)["expired-on-arrival"]
    assert finding.level is CheckLevel.LOSES
    assert "1 of its newest 4 messages had expired when they came" in finding.found
    assert "the oldest is 5 h old" in finding.found


def test_old_messages_that_came_in_time_are_none(look: Look) -> None:
    """Their segment keeps them."""
    now = time.time() * 1000
    assert "expired-on-arrival" not in look(now - 9 * HOUR, now - 5 * HOUR, now)


def test_timestamps_in_seconds_expire_at_once(look: Look) -> None:
    now = time.time()
    finding = look(now * 1000, now, now)["expired-on-arrival"]
    assert "2 of its newest 3 messages" in finding.found
    assert "as seconds it would be of now" in finding.found
    assert "write milliseconds instead of seconds" in finding.mend


def test_a_sample_shows_that_old_messages_came_late(
    properties: dict[str, str], topic: MakeTopic, group: str, tmp_path: Path
) -> None:
    """A mirror: all of its messages are old, and the end was seen before they came."""
    name = topic(partitions=1, config={"retention.ms": "-1"})
    set_offsets_raw(properties, group, name, {0: 0})
    workspace = make_workspace(tmp_path, properties, name, group)
    assert "expired-on-arrival" not in examine(workspace)
    publish(properties, name, {0: 5}, hours_ago=5)
    # Behind them one of now: else the broker deletes them before they are looked at.
    publish(properties, name, {0: 1})
    set_config(properties, name, {"retention.ms": str(4 * HOUR)})
    assert "5 of its newest 6" in examine(workspace)["expired-on-arrival"].found


@pytest.mark.parametrize(
    ("config", "level", "found"),
    [
        ({"segment.ms": "5000"}, "warns", "segment.ms is 5 s: a partition that is written comes"),
        ({"segment.ms": "200"}, "stops", "up to 72,000 segments"),
        (
            {"retention.bytes": "2000000000", "segment.bytes": "1048576", "retention.ms": "-1"},
            "warns",
            "up to 1,907 segments",
        ),
        ({"retention.ms": "-1", "segment.ms": "60000"}, "stops", "any number of segments"),
        ({"segment.ms": "600000"}, None, ""),
        ({"segment.ms": "60000", "cleanup.policy": "compact"}, None, ""),
    ],
)
def test_segments_that_are_too_small(
    look: Look, config: dict[str, str], level: str | None, found: str
) -> None:
    findings = look(time.time() * 1000, **config)
    finding = findings.get("small-segments")
    assert (None if finding is None else finding.level) == level
    assert finding is None or found in finding.found


def fail(*_: object, **__: object) -> Iterator[CheckFinding]:
    nothing: dict[int, CheckFinding] = {}
    yield nothing[0]


def test_fault_109_a_rule_that_fails_hides_no_finding(
    look: Look, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(judging, "explain_unsupported_group", fail_at_once)
    monkeypatch.setattr(examining, "judge_rights", fail)
    findings = look(time.time() * 1000)
    assert findings["examination"].level is CheckLevel.UNKNOWN
    assert "KeyError: 0" in findings["examination"].found
    assert "replication-factor" in findings
    assert any(one.exc_info for one in caplog.records)


def fail_at_once(*_: object) -> None:
    raise KeyError(0)


def test_fault_109_a_stream_that_fails_hides_no_other(
    properties: dict[str, str], topic: MakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read of one fails, and a property of another's cluster is none."""
    name = topic(partitions=1)

    def read(*arguments: object) -> object:
        if arguments[2] == "broken":
            raise KeyError(0)
        return read_topic(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(examining, "read_topic", read)
    streams = {
        "broken": {"cluster": "main", "topic": "broken", "group": "a"},
        "orders": {"cluster": "main", "topic": name, "group": "b"},
        "wrong": {"cluster": "wrong", "topic": name, "group": "c"},
    }
    wrong = {"security.protocol": "ssl", "ssl.ca.location": "/nowhere.pem"}
    clusters = {"main": properties, "wrong": {**properties, **wrong}}
    make_workspace(tmp_path, properties, streams=streams, clusters=clusters)
    code, out, _ = call_main(("doctor", "--json"), tmp_path, {})
    examinations = {one["name"]: one["findings"] for one in json.loads(out)["examinations"]}
    assert code == 1, "one replica loses"
    assert "replication-factor" in {one["check"] for one in examinations["orders"]}
    told = {name: " ".join(one["found"] for one in found) for name, found in examinations.items()}
    assert "KeyError: 0" in told["broken"]
    assert "ssl.ca.location" in told["wrong"]
