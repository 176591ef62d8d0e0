"""A cluster that refuses settings, as managed ones do: a real broker with a policy of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from backlogctl.errors import Refused
from backlogctl.fanout import temporary_topic
from backlogctl.fanout.temporary_settings import agree_on_config, make_temporary_config
from backlogctl.fanout.temporary_topic import create_temporary_topic
from backlogctl.kafka import admin as verbs
from backlogctl.kafka.admin import TopicInfo
from backlogctl.kafka.clients import Admin, make_admin
from backlogctl.ledger import Ledger
from backlogctl.sandbox import embedded
from backlogctl.sandbox.embedded import EmbeddedKafka, ensure_kafka_jars
from tests.kit.kafka import leave_at, publish
from tests.kit.ledger import create_recovery
from tests.kit.shop import call_main

# Of topics by the first word of their names: what nobody may set, and how large messages may be.
_POLICY = """
import java.util.Map;
import java.util.Set;
import org.apache.kafka.common.errors.PolicyViolationException;
import org.apache.kafka.server.policy.CreateTopicPolicy;

public class Policy implements CreateTopicPolicy {
    static final Map<String, Set<String>> REFUSED = Map.of(
        "none", Set.of("compression.type", "min.insync.replicas", "message.timestamp.type",
                       "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"),
        "some", Set.of("compression.type"),
        "keeps", Set.of("retention.ms"));

    public void configure(Map<String, ?> configs) {}

    public void close() {}

    public void validate(RequestMetadata request) {
        String word = request.topic().split("[.]")[0];
        String size = request.configs().get("max.message.bytes");
        if (size != null && Integer.parseInt(size) > 8388608 && REFUSED.containsKey(word))
            throw new PolicyViolationException("messages have at most 8388608 bytes here");
        if (word.equals("few") && request.numPartitions() > 1)
            throw new PolicyViolationException("one partition is enough");
        for (String name : request.configs().keySet())
            if (REFUSED.getOrDefault(word, Set.of()).contains(name))
                throw new PolicyViolationException(name + " is not yours to set");
    }
}
"""
_SIZE = "max.message.bytes"


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    place = tmp_path_factory.mktemp("policy")
    (place / "Policy.java").write_text(_POLICY)
    jars, javac = ensure_kafka_jars(), shutil.which("javac")
    assert javac is not None, "no javac here: run scripts/need.sh jdk"
    classes = ":".join(map(str, jars))
    subprocess.run([javac, "-cp", classes, "-d", place, place / "Policy.java"], check=True)
    own = {"create.topic.policy.class.name": "Policy"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "ensure_kafka_jars", lambda *_: [*jars, place])
        with EmbeddedKafka.start(place / "kafka", heap="256m", properties=own) as running:
            yield running


@pytest.fixture
def admin(strict: EmbeddedKafka) -> Admin:
    return make_admin(strict.client_properties)


def make_source(admin: Admin, name: str) -> TopicInfo:
    verbs.create_topic(admin, name, partitions=2)
    return verbs.describe_topic(admin, name)


def agree(admin: Admin, source: TopicInfo) -> dict[str, str]:
    return agree_on_config(admin, source, f"{source.name}.recovery.r", 4)


def test_all_is_set_where_nothing_is_refused(admin: Admin) -> None:
    source = make_source(admin, "any")
    assert agree(admin, source) == make_temporary_config(source)


def test_only_what_is_refused_is_given_up(admin: Admin) -> None:
    source = make_source(admin, "some")
    wanted = make_temporary_config(source)
    del wanted["compression.type"]
    assert agree(admin, source) == wanted | {_SIZE: source.config[_SIZE]}


def test_what_it_needs_is_never_given_up(admin: Admin) -> None:
    """The cluster's own retention would delete what nobody has read."""
    with pytest.raises(Refused, match=r"retention\.ms \(604800000, needed -1\)"):
        agree(admin, make_source(admin, "keeps"))
    with pytest.raises(Refused, match="one partition is enough"):
        agree_on_config(admin, make_source(admin, "nobody"), "few.recovery.r", 4)


def test_a_topic_with_fewer_settings_is_made_and_is_ours(
    admin: Admin, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporary_topic, "_TRY_SECONDS", 1.0)
    source = make_source(admin, "none")
    recovery = create_recovery(ledger, "expand", "none", group="g", plan_hash="hash").id

    def create() -> str | None:
        return create_temporary_topic(
            ledger, admin, recovery_id=recovery, cluster="main", source=source, partitions=4
        ).topic_id

    with monkeypatch.context() as patch:
        patch.setattr(ledger.temporary_topics, "record_id", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):  # it is killed after the creation
            create()
    name = f"none.recovery.{recovery}"
    assert create() == verbs.read_topic_id(admin, name)[0]
    found = verbs.describe_topic(admin, name)
    assert found.config[_SIZE] == source.config[_SIZE]
    assert (found.config["retention.ms"], found.config["retention.bytes"]) == ("-1", "-1")
    assert temporary_topic.find_changed_settings(admin, name) == {}
    verbs.delete_topic(admin, name, found.topic_id)


def test_the_plan_says_it_before_anything_stops(
    strict: EmbeddedKafka, admin: Admin, tmp_path: Path
) -> None:
    said = {}
    for topic in ("none-orders", "keeps-orders"):
        name = topic.replace("-", ".")
        make_source(admin, name)
        publish(strict.client_properties, name, {0: 9})
        leave_at(strict.client_properties, topic, name, {0: 4})
        consumers = {"launcher": "manual", "replicas": 1}
        stream = {"cluster": "main", "topic": name, "group": topic, "consumers": consumers}
        document = {
            "ledger": f"sqlite:///{tmp_path}/ledger.db",
            "clusters": {"main": dict(strict.client_properties)},
            "streams": {"orders": stream},
        }
        (tmp_path / "backlog.yaml").write_text(json.dumps(document))
        words = ("plan", "expand", "orders", "--rate", "5")
        code, out, err = call_main(words, tmp_path, {})
        said[topic] = code, " ".join((out + err).replace("│", " ").split())
    assert said["none-orders"][0] == 0
    assert "max.message.bytes is 1048588, as of none.orders" in said["none-orders"][1]
    assert said["keeps-orders"][0] == 5
    assert "lets nobody set what the temporary topic needs: retention.ms" in said["keeps-orders"][1]
    assert not [name for name in admin.list_topics(timeout=30).topics if "recovery" in name]
