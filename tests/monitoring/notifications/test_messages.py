"""What is sent is what the services take, and nothing in it is taken for a command."""

from __future__ import annotations

import json

from hypothesis import example, given
from hypothesis import strategies as st

from monitoring.notifications.mailbox import Notice
from monitoring.notifications.messages import (
    SLACK_CHARACTERS,
    SUMMARY_CHARACTERS,
    Told,
    make_dedup_key,
    write_json,
    write_message,
    write_pagerduty,
    write_slack,
    write_tests,
)
from monitoring.verdicts import Verdict
from tests.monitoring.notifications.makers import COMMAND, make_hook, see

KEY = "0123456789abcdef0123456789abcdef"
HOSTILE = "<!channel> & <https://evil.example|page>\n\x1b[2J\u202e"
TOLD = Told((COMMAND,), "https://backlog.example/streams/orders", "https://backlog.example")
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=1200)


def test_a_webhook_gets_the_sentence_and_the_next_command() -> None:
    stop = see(Verdict.STOP)
    document = write_json(Notice(stop, Verdict.OK, is_resolved=False), TOLD)
    assert document == {
        "schema_version": 1,
        "event": "verdict",
        "stream": "orders",
        "cluster": "main",
        "topic": "orders",
        "group": "service",
        "at": "2026-11-21T01:02:03.000000Z",
        "before": "ok",
        "verdict": "stop",
        "course": "stop",
        "resolved": False,
        "sentence": "orders/0: this is stop",
        "next_commands": [COMMAND],
        "page": "https://backlog.example/streams/orders",
        "lag": 60,
        "lag_seconds": 0.0,
        "lost": None,
        "seconds_to_drain": None,
        "seconds_to_loss": 60.5,
        "expected_loss": None,
    }


def test_slack_gets_one_block_with_the_change() -> None:
    lost = see(Verdict.LOST, course=Verdict.BEYOND_END)
    document = write_slack(Notice(lost, Verdict.STOP, is_resolved=False), TOLD)
    assert document["text"].splitlines() == [
        "*orders*: stop → *lost, beyond end*",
        "orders/0: this is lost",
        f"next: `{COMMAND}`",
        "<https://backlog.example/streams/orders|page>",
    ]
    (block,) = document["blocks"]
    assert block["text"] == {"type": "mrkdwn", "text": document["text"], "verbatim": True}
    first = write_slack(Notice(lost, None, is_resolved=False), Told())
    assert first["text"].startswith("*orders*: *lost, beyond end*\n")


def test_pagerduty_gets_a_trigger_and_a_resolve_of_one_key() -> None:
    losing, ok = see(Verdict.LOSING), see(Verdict.OK)
    event = write_pagerduty(KEY, Notice(losing, Verdict.OK, is_resolved=False), TOLD)
    assert event["routing_key"] == KEY
    assert event["event_action"] == "trigger"
    payload = event["payload"]
    assert payload["summary"] == losing.sentence
    assert (payload["severity"], payload["source"]) == ("critical", "main/orders")
    assert (payload["component"], payload["group"], payload["class"]) == (
        "orders",
        "service",
        "losing",
    )
    assert payload["custom_details"]["next_commands"] == [COMMAND]
    assert payload["custom_details"]["before"] == "ok"
    assert event["links"] == [{"href": TOLD.page, "text": "page"}]
    resolved = write_pagerduty(KEY, Notice(ok, Verdict.LOSING, is_resolved=True), TOLD)
    assert resolved == {
        "routing_key": KEY,
        "dedup_key": event["dedup_key"],
        "event_action": "resolve",
    }
    assert make_dedup_key(see(Verdict.OK, group="other")) != event["dedup_key"]


def test_every_verdict_has_a_severity() -> None:
    found = {
        write_pagerduty(KEY, Notice(see(v), None, is_resolved=False), Told())["payload"]["severity"]
        for v in Verdict
        if v is not Verdict.OK
    }
    assert found == {"critical", "error", "warning", "info"}


def test_what_others_wrote_is_no_command() -> None:
    hostile = see(Verdict.UNKNOWN, sentence=HOSTILE, group=HOSTILE)
    notice = Notice(hostile, None, is_resolved=False)
    text = write_slack(notice, Told((f"backlogctl status {HOSTILE}",)))["text"]
    shown = r"&lt;!channel&gt; &amp; &lt;https://evil.example|page&gt;\n\x1b[2J\u202e"
    assert text.splitlines()[1:] == [shown, f"next: `backlogctl status {shown}`"]
    event = write_pagerduty(KEY, notice, Told())
    summary, group = event["payload"]["summary"], event["payload"]["group"]
    for told in (summary, group, write_json(notice, Told())["sentence"]):
        assert told.endswith(r"\n\x1b[2J\u202e")


@given(NAMES, NAMES)
@example("&" * 5000, "<" * 5000)
def test_no_text_is_longer_than_the_services_take(sentence: str, name: str) -> None:
    notice = Notice(see(Verdict.STOP, sentence=sentence, group=name), None, is_resolved=False)
    slack = write_slack(notice, Told((name, name), f"https://backlog.example/{'x' * 300}"))
    (block,) = slack["blocks"]
    assert len(block["text"]["text"]) <= SLACK_CHARACTERS
    assert "<!" not in block["text"]["text"]
    event = write_pagerduty(KEY, notice, Told((name,)))
    assert len(event["payload"]["summary"]) <= SUMMARY_CHARACTERS
    assert len(event["dedup_key"]) <= 255


def test_names_of_the_longest_kind_fit_the_dedup_key() -> None:
    assert len(make_dedup_key(see(Verdict.STOP, "s" * 249, group="g" * 10_000))) <= 255


def test_no_repr_shows_a_secret() -> None:
    hook = make_hook(webhook="https://hooks.example/s3cr3t", token="t0ken-t0ken")
    message = write_message(hook, Notice(see(Verdict.STOP), None, is_resolved=False), TOLD)
    assert message.headers["Authorization"] == "Bearer t0ken-t0ken"
    for one in (hook, message):
        assert "t0ken" not in repr(one)
        assert "s3cr3t" not in repr(one)


def test_a_test_of_pagerduty_is_resolved_at_once() -> None:
    trigger, resolve = (
        json.loads(message.body) for message in write_tests(make_hook(pagerduty=KEY), "oncall")
    )
    assert (trigger["event_action"], resolve["event_action"]) == ("trigger", "resolve")
    assert trigger["dedup_key"] == resolve["dedup_key"]
    assert trigger["payload"]["severity"] == "info"
    assert "nothing is wrong" in trigger["payload"]["summary"]
