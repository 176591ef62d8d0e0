"""What the tool must be allowed (faults 77, 85), and kinds that it does not know."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from backlogctl.clock import Deadline, utc_now
from backlogctl.config import Config, load_config
from backlogctl.errors import Refused
from backlogctl.kafka.admin import (
    alter_topic_config,
    create_topic,
    list_topic_readers,
    read_metadata,
)
from backlogctl.kafka.quotas import read_quota
from backlogctl.kafka.rights import Operation, Resource, Right, make_acl_lines, read_rights
from backlogctl.replay.cli import main, shared
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.kinds import KINDS
from backlogctl.replay.observe import retention
from backlogctl.replay.observe.retention import hold_stream
from backlogctl.replay.observe.rights import list_jobs, list_rights, require_rights
from backlogctl.replay.opening import open_workspace
from backlogctl.values import Quota, Recovery, RecoveryState
from backlogctl_delivery.kafka import AccessDenied
from scripts.permissions_reference import PAGE, render_page
from tests.kit.java import run_line, write_script
from tests.kit.kafka import publish, set_offsets_raw, wait_until
from tests.kit.ledger import create_recovery
from tests.kit.recoveries import open_desk, store_plan
from tests.kit.secured import PASSWORD, SecuredKafka, start_secured
from tests.kit.shop import call_main
from tests.replay.conftest import Verb

_IMPLY = {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
GROUP = "order-service"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """A broker with a topic and a group that has read a part of it."""
    with start_secured(tmp_path_factory.mktemp("secured")) as found:
        create_topic(found.properties, "orders", partitions=1)
        publish(found.properties, "orders", {0: 5})
        set_offsets_raw(found.properties, GROUP, "orders", {0: 2})
        yield found


def write_config(
    directory: Path, secured: SecuredKafka, user: str, patch: pytest.MonkeyPatch
) -> Config:
    patch.setenv("TOOL_PASSWORD", PASSWORD)
    document = {
        "ledger": "sqlite:///ledger.db",
        "clusters": {"main": secured.login(user, "${env:TOOL_PASSWORD}")},
        "sources": {"shop": {"url": "sqlite:///shop.db"}},
        "streams": {
            "orders": {
                "cluster": "main",
                "topic": "orders",
                "group": GROUP,
                "consumers": {"launcher": "manual", "replicas": 1},
                "source": {
                    "database": "shop",
                    "table": "orders",
                    "primary_key": ["order_id"],
                    "time_column": "updated_at",
                    "message": {"key": "order_id", "value": {"json": ["order_id"]}},
                    "identity": {"row": "order_id", "message": "key"},
                },
            }
        },
    }
    (directory / "backlog.yaml").write_text(json.dumps(document))
    return load_config(directory / "backlog.yaml")


@pytest.mark.parametrize("job", list_jobs(KINDS))
def test_fault_77_each_right_that_is_missing_is_found_beforehand(
    secured: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    """For each of the job's rights a user who has all others."""
    config = write_config(tmp_path, secured, "anyone", monkeypatch)
    rights = list_rights(KINDS, job, config, config.stream("orders"))
    assert read_rights(secured.add_user(f"{job}-all", rights), rights).missing == ()
    for number, right in enumerate(rights):
        others = [other for other in rights if other != right]
        found = read_rights(secured.add_user(f"{job}-{number}", others), rights)
        # Without that, nothing is told of the cluster.
        blind = (right.resource, right.operation) == (Resource.CLUSTER, Operation.DESCRIBE)
        blind &= not is_implied(right, others)
        hidden = [one for one in others if blind and one.resource is Resource.CLUSTER]
        assert found.unknown == tuple(hidden)
        assert found.missing == (() if is_implied(right, others) else (right,))


def is_implied(right: Right, others: list[Right]) -> bool:
    """Kafka lets who may read, write, delete or alter describe too."""
    if right.operation is Operation.DESCRIBE_CONFIGS:
        implying = {Operation.ALTER_CONFIGS}
    else:
        implying = _IMPLY if right.operation is Operation.DESCRIBE else set()
    place = (right.resource, right.name)
    same = {o.operation for o in others if (o.resource, o.name) == place}
    return bool(same & implying)


# What a plan of a kind must be told.
_SAID = {"redrive": ("--from", "log", "--all")}


@pytest.mark.parametrize("kind", KINDS.names())
def test_fault_77_a_plan_refuses_before_it_touches_anything(
    secured: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    config = write_config(tmp_path, secured, f"{kind}-blind", monkeypatch)
    rights = list_rights(KINDS, kind, config, config.stream("orders"))
    missing = [right for right in rights if right.resource is Resource.TRANSACTIONAL_ID]
    if not missing:  # it sends nothing
        missing = [right for right in rights if right.operation is Operation.DELETE]
    secured.add_user(f"{kind}-blind", [right for right in rights if right not in missing])
    before = read_metadata(secured.properties).topics
    words = ("plan", kind, "orders", *_SAID.get(kind, ()), "--json")
    code, out, _ = call_main(words, tmp_path, {})
    assert code == 5
    error = json.loads(out)["error"]
    assert error["code"] == "refused"
    assert f"{missing[-1]}" in error["message"]
    (line,) = make_acl_lines(missing, f"User:{kind}-blind", secured.properties["bootstrap.servers"])
    assert error["hint"].splitlines() == [
        "who administers the cluster grants them with",
        f"  {line}",
    ]
    assert read_metadata(secured.properties).topics.keys() == before.keys()
    assert open_workspace(config).ledger.recoveries.list() == ()


def test_a_share_of_the_quota_needs_a_right_to_read_it(
    secured: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where it is set; without the right nothing is planned that could not keep it."""
    config = write_config(tmp_path, secured, "no-quotas", monkeypatch)
    right = Right(
        *(Resource.CLUSTER, "kafka-cluster", Operation.DESCRIBE_CONFIGS),
        "keep to a share of its quota",
    )
    place = tmp_path / "backlog.yaml"
    document = json.loads(place.read_text())
    document["streams"]["orders"]["limits"] = {"quota_share": "50%"}
    place.write_text(json.dumps(document))
    before = list_rights(KINDS, "expand", config, config.stream("orders"))
    config = load_config(place)
    for kind in KINDS.names():
        assert (right in list_rights(KINDS, kind, config, config.stream("orders"))) is (
            kind != "offload"
        )
    properties = secured.add_user("no-quotas", before)
    code, out, _ = call_main(("plan", "expand", "orders", "--rate", "1", "--json"), tmp_path, {})
    error = json.loads(out)["error"]
    assert (code, error["code"]) == (5, "refused")
    assert "DESCRIBE_CONFIGS on the cluster (to keep to a share of its quota)" in error["message"]
    with pytest.raises(Refused, match="cannot be kept"):
        read_quota(properties, Deadline(30))
    secured.add_user("no-quotas", [*before, right])
    wait_until(lambda: not read_rights(properties, [right]).missing, what="the rule holds")
    quota = read_quota(properties, Deadline(30))
    assert quota == Quota(None, "user no-quotas with client.id backlogctl")


def test_the_lines_work_as_they_are_printed(
    secured: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Kafka's own tool."""
    write_config(tmp_path, secured, "by-lines", monkeypatch)
    secured.add_user("by-lines", [])
    code, out, _ = call_main(("acl", "see", "orders", "--json"), tmp_path, {})
    assert code == 0
    document = json.loads(out)
    assert document["principal"] == "User:by-lines"
    (tmp_path / "admin.properties").write_text(secured.write_java_properties())
    write_script(tmp_path / "kafka-acls.sh", "AclCommand")
    for line in document["commands"]:
        run_line(line, tmp_path)
    config = load_config(tmp_path / "backlog.yaml")
    rights = list_rights(KINDS, "see", config, config.stream("orders"))
    properties = config.clusters["main"].client_properties()
    wait_until(lambda: not read_rights(properties, rights).missing, what="the rules hold")
    assert call_main(("status", "--json"), tmp_path, {})[0] == 0


def test_with_iam_a_policy_is_printed_in_the_place_of_rules(tmp_path: Path) -> None:
    """Rules of Kafka count for nobody who logs in so; not run on Amazon."""
    document = {
        "ledger": "sqlite:///ledger.db",
        "clusters": {
            "main": {
                "bootstrap.servers": "b-1.shop.abc123.c2.kafka.eu-west-1.amazonaws.com:9098",
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "AWS_MSK_IAM",
            }
        },
        "streams": {"orders": {"cluster": "main", "topic": "orders", "group": GROUP}},
    }
    (tmp_path / "backlog.yaml").write_text(json.dumps(document))
    for job in list_jobs(KINDS):
        code, out, _ = call_main(("acl", job, "orders"), tmp_path, {})
        assert code == 0
        assert "kafka-acls" not in out
        granted = {
            one["Resource"].removeprefix("arn:aws:kafka:REGION:ACCOUNT:"): one["Action"]
            for one in map(json.loads, out.splitlines())
        }
        assert granted["cluster/NAME/UUID"][0] == "kafka-cluster:Connect"
        assert "kafka-cluster:ReadData" in granted["topic/NAME/UUID/orders"]
        assert "kafka-cluster:AlterGroup" in granted["group/NAME/UUID/backlogctl-reader"]
    assert granted["topic/NAME/UUID/orders.recovery.*"] == [
        *("kafka-cluster:CreateTopic", "kafka-cluster:DescribeTopic"),
        *("kafka-cluster:DescribeTopicDynamicConfiguration", "kafka-cluster:WriteData"),
        *("kafka-cluster:ReadData", "kafka-cluster:DeleteTopic"),
        "kafka-cluster:AlterTopicDynamicConfiguration",
    ]
    assert granted["transactional-id/NAME/UUID/backlog:relay:orders.*"] == [
        "kafka-cluster:DescribeTransactionalId",
        "kafka-cluster:AlterTransactionalId",
    ]


def test_fault_85_readers_that_may_not_be_seen_are_unknown(
    secured: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path, secured, "half-blind", monkeypatch)
    rights = list_rights(KINDS, "rebuild", config, config.stream("orders"))
    properties = secured.add_user("half-blind", rights)
    seen = list_topic_readers(properties, "orders")
    assert list(seen.known) == [GROUP]
    assert seen.say_unknown(GROUP) == ""
    create_topic(secured.properties, "payments", partitions=1)
    set_offsets_raw(secured.properties, "somebody-else", "payments", {0: 0})
    # What it reads may not be seen: it may be this topic.
    hidden = list_topic_readers(properties, "orders")
    assert hidden.hidden == ("somebody-else",)
    assert "somebody-else" in hidden.say_unknown(GROUP)
    narrow = [right for right in rights if right.resource is not Resource.CLUSTER]
    blind = list_topic_readers(secured.add_user("blind", narrow), "orders")
    assert "may not list all groups" in blind.say_unknown(GROUP)
    workspace = open_workspace(config)
    assert require_rights(workspace, config.stream("orders"), rights) == []


def test_a_login_that_cannot_be_asked_for_is_said(tmp_path: Path, secured: SecuredKafka) -> None:
    right = Right(Resource.TOPIC, "orders", Operation.READ, "read")
    properties = {**secured.properties, "sasl.mechanism": "OAUTHBEARER"}
    found = read_rights(properties, [right])
    assert found.unknown == (right,)
    assert "OAUTHBEARER" in found.reason


def test_who_may_do_nothing_is_refused_by_name(
    secured: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path, secured, "nobody", monkeypatch)
    secured.add_user("nobody", [])
    rights = list_rights(KINDS, "expand", config, config.stream("orders"))
    with pytest.raises(Refused, match="DESCRIBE on topic orders"):
        require_rights(open_workspace(config), config.stream("orders"), rights)


def test_the_page_lists_what_the_code_asks_for() -> None:
    page = PAGE.read_text()
    assert render_page(page) == page, "run: python -m scripts.permissions_reference"


def test_fault_85_without_the_cluster_work_goes_on_and_says_what_is_unknown(
    secured: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path, secured, "no-cluster", monkeypatch)
    rights = list_rights(KINDS, "rebuild", config, config.stream("orders"))
    secured.add_user("no-cluster", [one for one in rights if one.resource is not Resource.CLUSTER])
    (told,) = require_rights(open_workspace(config), config.stream("orders"), rights)
    assert "DESCRIBE on the cluster" in told


def test_fault_80_a_hold_that_is_refused_or_undone_is_not_in_force(
    secured: SecuredKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused before, refused by the broker all the same, and undone by somebody later."""
    alter_topic_config(secured.properties, "orders", {"retention.ms": "3600000"})
    config = write_config(tmp_path, secured, "holder", monkeypatch)
    stream = config.stream("orders")
    rights = list_rights(KINDS, "hold", config, stream)
    secured.add_user("holder", [r for r in rights if r.operation is not Operation.ALTER_CONFIGS])
    workspace = open_workspace(config)
    with pytest.raises(Refused, match="ALTER_CONFIGS on topic orders"):
        hold_stream(workspace, stream, timedelta(hours=6))
    with monkeypatch.context() as patch:
        patch.setattr(retention, "require_rights", lambda *_: [])
        with pytest.raises(AccessDenied, match="nothing was raised"):
            hold_stream(workspace, stream, timedelta(hours=6))
    assert workspace.ledger.holds.list() == ()
    secured.add_user("holder", rights)
    hold = hold_stream(workspace, stream, timedelta(hours=6)).hold
    assert hold is not None
    assert hold.in_force is True
    alter_topic_config(secured.properties, "orders", {"retention.ms": "3600000"})
    code, out, _ = call_main(("status", "--json"), tmp_path, {})
    assert code == 0
    (entry,) = json.loads(out)["streams"]
    assert any(hold.id in text and "not in force" in text for text in entry["warnings"])
    shown = json.loads(call_main(("hold", "--json"), tmp_path, {})[1])["holds"]
    assert [one["in_force"] for one in shown] == [False]
    assert "not held" in call_main(("hold",), tmp_path, {})[1]


S = RecoveryState
WORDS = "does not know the kind mystery"
# Every verb that takes a recovery, and states in which it would be carried out, or almost.
VERBS: tuple[tuple[str, tuple[str, ...], tuple[RecoveryState, ...]], ...] = (
    ("show", (), (S.PLANNED,)),
    ("approve", ("--by", "Ada"), (S.PLANNED, S.REJECTED)),
    ("reject", ("--reason", "no"), (S.PLANNED,)),
    ("run", (), (S.APPROVED, S.PAUSED, S.FAILED)),
    ("pause", (), (S.RUNNING,)),
    ("resume", (), (S.PAUSED, S.VERIFIED)),
    ("cancel", ("--wait", "0"), (S.APPROVED, S.RUNNING, S.CANCELLED)),
    ("report", (), (S.VERIFIED,)),
)
STATES = tuple(S)


def store_mystery(desk: Workspace, state: RecoveryState = S.PLANNED) -> Recovery:
    """A recovery that a newer program planned and perhaps runs."""
    riddle = {"version": 7, "riddle": True}
    made = create_recovery(desk.ledger, "mystery", plan=riddle, plan_hash="hash", by="newer")
    if state is S.REJECTED:
        return desk.ledger.recoveries.advance(made.id, state, "newer")
    if state is not S.PLANNED:
        expires = utc_now().replace(year=2100)
        desk.ledger.recoveries.approve(made.id, "newer", "newer", "hash", expires)
        for each in (S.RUNNING, state):
            if each is not desk.ledger.recoveries.get(made.id).state and state is not S.APPROVED:
                desk.ledger.recoveries.advance(made.id, each, "newer")
    return desk.ledger.recoveries.get(made.id)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    return open_desk(tmp_path)


@pytest.mark.parametrize(
    ("name", "words", "state"),
    [(name, words, state) for name, words, states in VERBS for state in states],
    ids=[f"{name}-{state}" for name, _, states in VERBS for state in states],
)
def test_every_verb_refuses_it(
    desk: Workspace, verb: Verb, name: str, words: tuple[str, ...], state: RecoveryState
) -> None:
    recovery = store_mystery(desk, state)
    said = verb(name, recovery.id, *words, "--json", code=5).error
    assert WORDS in said["message"]
    assert said["subject"] == f"recovery {recovery.id}"
    assert "use the version of backlogctl that planned it" in said["hint"]
    assert desk.ledger.recoveries.get(recovery.id).state is state, "nothing was changed"


@pytest.mark.parametrize("state", STATES)
def test_it_is_listed_and_hides_nothing(
    desk: Workspace, state: RecoveryState, capfd: pytest.CaptureFixture[str]
) -> None:
    mystery = store_mystery(desk, state)
    known = store_plan(desk)
    assert main(["recoveries", "--json"]) == 0
    rows = {row["id"]: row for row in json.loads(capfd.readouterr().out)["recoveries"]}
    assert (rows[mystery.id]["verdict"], rows[mystery.id]["kind"]) == ("unknown", "mystery")
    assert WORDS in rows[mystery.id]["problem"]
    assert rows[known.id]["verdict"] == "exact"
    os.environ.pop("BACKLOG_CONFIG", None)
    shared.SESSION = shared.Session()
    assert main(["recoveries"]) == 0
    assert "mystery" in capfd.readouterr().out


@pytest.mark.parametrize("state", [S.APPROVED, S.RUNNING, S.PAUSED, S.FAILED])
def test_it_is_in_the_way_of_others_as_its_traits_say(
    desk: Workspace, state: RecoveryState
) -> None:
    """The ledger knows that it stops the consumers, and that a failed one holds."""
    from backlogctl.replay.engine.guards import refuse_active

    store_mystery(desk, state)
    with pytest.raises(Refused, match=f"is {state}"):
        refuse_active(desk, desk.config.stream("orders"))


def test_the_registry_is_the_one_that_refuses(desk: Workspace) -> None:
    recovery = store_mystery(desk)
    for ask in (desk.kind_of, desk.plan_of):
        with pytest.raises(Refused, match=WORDS):
            ask(recovery)
