"""What is next for a stream: `status`, the page and `show` say the same, and it leads to an end."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from confluent_kafka.cimpl import NewPartitions
from starlette.testclient import TestClient

from backlogctl.kafka.admin import create_topic, read_topic_id
from backlogctl.kafka.clients import make_admin
from backlogctl.replay.web.page.app import make_page
from backlogctl.values import GapState
from tests.kit.following import find_next, follow
from tests.kit.kafka import delete_topic, wait_until
from tests.kit.shop import PARTITIONS, SOURCE
from tests.replay.redrive.test_next_commands import (
    AGAIN,
    CANARY,
    CANCEL,
    OPEN,
    RUN,
    Story,
    archived,
    cancel_sent,
    change_configuration,
    delete_kafka_ledger,
    empty,
    story,
)
from tests.replay.redrive.world import KEEP
from tests.replay.web.page.visits import strip

__all__ = ["archived", "empty", "story"]
pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("spark")]
APPROVE = "approve R --by NAME"


def find_nothing(_: Story) -> str:
    """No recovery is open."""
    return ""


def add_table(story: Story) -> str:
    """Its rows are another way; as they were written is the better one."""
    story.shop.write_config(source=SOURCE)
    return ""


def plan(story: Story) -> str:
    planned = story.shop.call(*story.find_plan(), "--json").document
    return str(planned["id"])


def run_for_another(story: Story) -> str:
    """A recovery of another stream of the topic and group is in the way."""
    path = story.shop.directory / "backlog.yaml"
    recovery = story.approve()
    document = json.loads(path.read_text())
    document["streams"]["others"] = document["streams"]["orders"]
    path.write_text(json.dumps(document))
    return recovery


def make_topic_anew(story: Story) -> str:
    """Nobody has run it since."""
    shop, recovery = story.shop, story.approve()
    delete_topic(shop.properties, shop.topic)
    create_topic(shop.properties, shop.topic, partitions=PARTITIONS, config=KEEP)
    return recovery


def add_partitions(story: Story) -> str:
    """Nobody has approved it yet."""
    shop, recovery = story.shop, plan(story)
    admin, wanted = make_admin(shop.properties), PARTITIONS + 1
    admin.create_partitions([NewPartitions(shop.topic, wanted)])[shop.topic].result(60)
    wait_until(lambda: read_topic_id(admin, shop.topic)[1] == wanted)
    return recovery


def end_unverified(story: Story) -> str:
    """All was sent, so a plan would find nothing."""
    cancel_sent(story)
    return ""


def end_without_ledger(story: Story) -> str:
    """A plan would be refused until a person has decided."""
    story.call("cancel", delete_kafka_ledger(story))
    return ""


@dataclass(frozen=True)
class Case:
    """A standing, and what is typed from `status` on; how the gaps are in the end."""

    arrange: Callable[[Story], str]
    typed: tuple[str, ...]
    gaps: GapState = GapState.VERIFIED
    stream: str = "orders"


PLAN = ("plan redrive orders --from log --offsets ", *AGAIN[1:])
LOOK = ("gaps orders",)
CASES = {
    "nothing was planned": Case(find_nothing, PLAN),
    "the log has what a table has": Case(add_table, PLAN),
    "a plan waits": Case(plan, (APPROVE, RUN)),
    "approved": Case(lambda story: story.approve(), (RUN,)),
    "a check was refused": Case(change_configuration, (CANCEL, *AGAIN)),
    "killed": Case(lambda story: story.kill_at(CANARY), (RUN,)),
    "approved for another stream": Case(run_for_another, (RUN,), stream="others"),
    "the topic was made anew": Case(make_topic_anew, (CANCEL,), OPEN),
    "partitions were added": Case(add_partitions, (CANCEL, *AGAIN)),
    "cancelled when all was sent": Case(end_unverified, LOOK, OPEN),
    "the Kafka ledger was deleted": Case(end_without_ledger, LOOK, OPEN),
}


@pytest.mark.parametrize("name", CASES)
def test_fault_122_status_and_the_page_say_what_show_says(story: Story, name: str) -> None:
    require(story, CASES[name])


def test_fault_122_an_archive_comes_before_a_table(archived: Story) -> None:
    typed = (f"{AGAIN[0]}archive:P", "approve Q --by NAME", "run Q")
    require(archived, Case(add_table, typed))


def find_doctors(story: Story, stream: str) -> str:
    """What `doctor` would have typed about the course of the group; "" where it is well."""
    found = story.shop.call("doctor", stream, "--json", code=None).document["examinations"]
    courses = [f for one in found for f in one["findings"] if f["check"] == "group-course"]
    return str(courses[0]["commands"][0]) if courses else ""


def require(story: Story, case: Case) -> None:
    recovery, shop = case.arrange(story), story.shop
    said = shop.call("status", case.stream)
    command = find_next(said)
    (entry,) = shop.call("status", case.stream, "--json").document["streams"]
    assert entry["next_commands"][0] == command, said.out
    assert find_doctors(story, case.stream) in ("", command)
    if recovery:
        shown = shop.call("show", recovery, "--json").document["next_commands"]
        assert shown == [command], "and nothing else"
    page = TestClient(make_page(shop.open(), board=None)).get(f"/streams/{case.stream}").text
    assert f"next {command}" in html.unescape(strip(page))
    typed = follow(story.call, recovery or "none", first=said)
    assert len(typed) == len(case.typed), typed
    assert all(map(str.startswith, typed, case.typed)), typed
    story.judge({case.gaps})
