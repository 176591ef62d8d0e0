"""All groups, for a user who may see some of them: what is hidden is said (fault 85)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError
from backlogctl.kafka.admin import create_topic
from backlogctl.kafka.clients import make_admin
from backlogctl.kafka.rights import Operation, Resource, Right, make_bindings
from backlogctl.ledger import open_ledger
from backlogctl.monitoring.groups.dating import Tails, make_tail_reader
from backlogctl.monitoring.groups.reader import BulkReader
from backlogctl.monitoring.groups.sampler import GroupSampler
from backlogctl.monitoring.groups.survey import Survey, SurveyScope
from backlogctl.monitoring.metrics.scrape import Exported, Scrape
from backlogctl.monitoring.watch.board import Board, ClusterPass
from backlogctl.monitoring.watch.look import look_at_stream
from backlogctl.replay.web.app import HealthCheck
from backlogctl.sandbox.secured import add_rules
from tests.kafka_tools import StreamStub, publish, set_offsets_raw, wait_until
from tests.monitoring.group_world import Topic, make_world
from tests.monitoring.metric_lines import scrape
from tests.secured import SecuredKafka, start_secured

WATCH = SimpleNamespace(window=timedelta(minutes=10), horizon=timedelta(hours=24))
LITTLE = (
    Right(Resource.TOPIC, "orders", Operation.DESCRIBE, "read offsets"),
    Right(Resource.GROUP, "service", Operation.DESCRIBE, "read commits"),
)
SETTINGS = Right(Resource.TOPIC, "orders", Operation.DESCRIBE_CONFIGS, "read retention")
READ = Right(Resource.TOPIC, "orders", Operation.READ, "read ends")
ALL_GROUPS = Right(Resource.CLUSTER, "kafka-cluster", Operation.DESCRIBE, "list all groups")
HIDDEN = Right(Resource.GROUP, "hidden", Operation.DESCRIBE, "read its commits")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """A topic, and two groups that are one message behind."""
    with start_secured(tmp_path_factory.mktemp("secured")) as found:
        create_topic(found.properties, "orders", partitions=1)
        publish(found.properties, "orders", {0: 9})
        set_offsets_raw(found.properties, "service", "orders", {0: 8})
        set_offsets_raw(found.properties, "hidden", "orders", {0: 8})
        yield found


def make_survey(properties: Mapping[str, str]) -> Survey:
    tails = Tails(make_tail_reader(dict(properties)))
    return Survey(BulkReader(dict(properties)), SurveyScope("main"), tails)


def look(properties: Mapping[str, str], times: int = 1) -> ClusterPass:
    with closing(make_survey(properties)) as survey:
        for _ in range(times):
            done = survey.look()
    return done


def test_fault_85_groups_that_may_not_be_listed_are_unknown(
    secured: SecuredKafka, tmp_path: Path
) -> None:
    done = look(secured.add_user("little", [*LITTLE, SETTINGS, READ]))
    assert [status.group for status in done.groups] == ["service"], "the broker hides the other"
    (unseen,) = done.unseen
    assert str(unseen).startswith("unknown: which other groups")
    assert "may not list all groups (DESCRIBE on the cluster is missing)" in str(unseen)
    assert "backlogctl acl see STREAM --principal P" in unseen.error.hint
    board = Board()
    board.put_cluster(done)
    with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        got = scrape(Scrape(board, ledger, Exported({}, ("main",))))
    assert got.labels_of("backlog_unseen", "what", group="") == {"groups"}
    ready = HealthCheck(board, lambda: True, timedelta(seconds=30), ("main",)).check_readiness()
    assert ready.code == 200
    assert ready.body["status"] == "degraded"
    assert ready.body["unseen"] == {"cluster main": [str(unseen)]}


def test_who_may_see_all_groups_is_told_nothing(secured: SecuredKafka) -> None:
    done = look(secured.add_user("all", [*LITTLE, SETTINGS, READ, ALL_GROUPS, HIDDEN]), times=2)
    assert [status.group for status in done.groups] == ["hidden", "service"]
    assert done.unseen == ()
    assert [status.unseen for status in done.groups] == [(), ()]
    # Without an authorizer everything may be seen; that the world below says so too, is its part.
    assert make_world([5], Topic([0], [10])).look().unseen == ()


def test_a_broker_that_does_not_tell_is_no_proof_of_all_groups() -> None:
    world = make_world([5], Topic([0], [10]))
    world.cluster.sees_all = None
    (unseen,) = world.look().unseen
    assert "do not tell" in str(unseen)


def test_fault_85_retention_and_ends_of_groups_that_may_not_be_read(
    secured: SecuredKafka,
) -> None:
    done = look(secured.add_user("blind", [*LITTLE, ALL_GROUPS]), times=2)
    assert done.unreadable == 1
    (status,) = done.groups
    assert [one.what for one in status.unseen] == ["retention", "tails"]
    assert status.seconds_to_loss is None
    assert status.lag == 1, "it counts, since nobody knows better"
    (unseen,) = done.unseen
    assert unseen.what == "tails"
    assert "may not read 1 topic (orders): READ is missing" in str(unseen)
    done = look(secured.add_user("sighted", [*LITTLE, SETTINGS, READ, ALL_GROUPS]), times=2)
    assert (done.groups[0].unseen, done.unseen) == ((), ())


def test_fault_85_the_end_of_a_stream_that_may_not_be_read(
    secured: SecuredKafka, tmp_path: Path
) -> None:
    properties = secured.add_user("streaming", [*LITTLE, SETTINGS, ALL_GROUPS])
    stream = StreamStub("orders", "service")
    with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        status = look_at_stream(ledger, stream, properties, WATCH, Deadline(30.0)).status
    told = {one.what: str(one) for one in status.unseen}
    assert "tails" in told
    assert "access denied" in told["tails"]


def test_what_is_hidden_is_said_once_and_when_it_ends(secured: SecuredKafka) -> None:
    properties = secured.add_user("watcher", [*LITTLE, SETTINGS, READ])
    told: list[tuple[str, BacklogError | None]] = []
    board = Board()
    survey = make_survey(properties)
    interval = timedelta(milliseconds=50)
    with GroupSampler(survey, board, interval, lambda: None, lambda *what: told.append(what)):
        wait_until(lambda: board.seen.version >= 4, what="passes")
        ((what, error),) = told
        assert what == "the list of groups of cluster main"
        assert error is not None
        assert "unknown" in str(error)
        add_rules(make_admin(secured.properties), make_bindings([ALL_GROUPS], "User:watcher"))
        wait_until(lambda: told[1:] == [(what, None)], what="it may list all groups now")


def test_one_denied_topic_does_not_take_the_turns_of_others() -> None:
    world = make_world([9, 9, 9], Topic([0, 0, 0], [10, 10, 10]))
    world.cluster.denied = {"orders"}
    world.look(2)
    world.cluster.tails.clear()
    world.look()
    assert len(world.cluster.tails) == 1, "one is enough to see that it may be read again"
    world.cluster.denied = set()
    world.look()
    assert [one.what for one in world.look().unseen] == []
