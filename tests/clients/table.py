"""Writes docs/clients.md from a run: `make test-clients ARGS="--all --write-clients"`."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from tests.clients.zoo import KINDS

FILE = Path(__file__).parents[2] / "docs" / "clients.md"
_ZOO, _VERDICTS = "tests/clients/test_zoo.py::", "tests/clients/test_verdicts.py::"
_RECOVERIES = "tests/clients/test_recoveries.py::"
# A column is what one test finds out of each client.
COLUMNS = {
    "lag, verdict, no false gap": f"{_ZOO}test_reads_everything_and_commits_in_its_own_way",
    "a job between two looks": f"{_VERDICTS}test_fault_88_a_job_that_comes_by_has_skipped_nothing",
    "lost while it reads on": f"{_VERDICTS}test_fault_89_what_live_clients_lost_is_told",
    "dead letters": f"{_ZOO}test_poison_goes_to_a_dead_letter_topic",
    "an expansion": f"{_RECOVERIES}test_an_expansion_of_its_consumers",
    "what is put back": f"{_RECOVERIES}test_what_is_put_back_is_handled_once",
    "its dead letters put back": f"{_RECOVERIES}test_its_dead_letters_are_put_back",
}
_HEAD = """# Clients

What is said of the groups of other people's clients was compared with their own record of what they read, on a real
broker. Each row is from a run of `make test-clients`, which writes this page with `ARGS="--all --write-clients"`.

- **Lag, verdict, no false gap**: it read 300 messages of three partitions and committed; lag, verdict and gaps are right.
  A client that never commits to Kafka has an unknown lag, and is not called well.
- **A job between two looks**: it joins, reads, commits and leaves; nothing is recorded as lost or skipped.
- **Lost while it reads on**: retention deletes in front of it three times. By the commit log no less is told than was lost,
  at most; the estimate is no more than 5 % and some seconds of reading above it.
- **Dead letters**: what it cannot handle is found in its dead letter topic, with where it came from.
- **An expansion**: two of its consumers and four more of them drain a backlog through a temporary topic; by their own record
  each message is handled, and the layout is as before.
- **What is put back**: by a rebuild of lost messages, and by a redrive from an offload's archive; it handles each once.
- **Its dead letters put back**: by a redrive, without what the framework added, and known by their first place.

`?` is not known: nobody has tried it with this client. KafkaJS was tried with `fromBeginning: true`; of its
default, which goes on at the end, a loss of 28,622 in five minutes was told as 28,620 by the commit log. An expansion is tried on your consumers, without any risk, by `plan
expand --try`.

**A consumer of librdkafka (2.11 to 2.16 tried; of Python, Go, .NET, Node) that hangs since all brokers were stopped in
order**, on a cluster of one broker at each restart: the last broker's answer named no broker, and the client has forgotten
them all. It reports nothing and reads no more, also when the brokers are back; of 12 consumers up to 5 at a restart.
Start it again. A group that was reading and stands still is told by `status` as such; our own readers
make [a new client](decisions/0040-a-client-that-has-lost-its-brokers.md).

"""


class Table:
    """Collects what a run found out; a test that failed is wrong in its column."""

    def __init__(self) -> None:
        self._found: defaultdict[str, dict[str, bool]] = defaultdict(dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of several processes, the one that leads has the reports of all."""
        for column, test in COLUMNS.items():
            if report.nodeid.startswith(test):
                for kind in _list_kinds(report):
                    before = self._found[kind].get(column, True)
                    self._found[kind][column] = before and report.passed

    def pytest_sessionfinish(self) -> None:
        """All have been run."""
        FILE.write_text(_HEAD + write_table(self._found))


def _list_kinds(report: pytest.TestReport) -> list[str]:
    named = [str(value) for name, value in report.user_properties if name == "client"]
    return named or [kind for kind in KINDS if f"[{kind}" in report.nodeid]


def write_table(found: dict[str, dict[str, bool]]) -> str:
    names = ("client", "version", "commits", *COLUMNS)
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for name, kind in KINDS.items():
        words: dict[bool | None, str] = {True: "right", False: "**wrong**", None: "?"}
        marks = [words[found[name].get(column)] for column in COLUMNS]
        told = (f"{kind.language}: {kind.library}, {name}", kind.version, kind.commits)
        lines.append(f"| {' | '.join((*told, *marks))} |")
    return "\n".join(lines) + "\n"
