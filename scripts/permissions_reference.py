"""The tables of docs/permissions.md: `python -m scripts.permissions_reference` writes it anew."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from backlogctl.config import Config
from backlogctl.kafka.rights import IAM_ACTIONS, Resource, Right
from backlogctl.replay.kinds import KINDS
from backlogctl.replay.observe.rights import AIRFLOW, list_jobs, list_rights

PAGE = Path(__file__).resolve().parents[1] / "docs/permissions.md"
_BEGIN, _END = "<!-- made by `python -m scripts.permissions_reference` -->", "<!-- end -->"
_BEGIN_IAM = "<!-- made by `python -m scripts.permissions_reference`, too -->"
_CONFIG = """
ledger: "sqlite:///ledger.db"
clusters: {main: {bootstrap.servers: "kafka:9092"}}
streams: {orders: {cluster: main, topic: orders, group: order-service}}
"""


def render_table() -> str:
    """One row for each resource and operation, one column for each job."""
    config = Config.from_text(_CONFIG)
    stream = config.stream("orders")
    jobs = [job for job in list_jobs(KINDS) if job != AIRFLOW]
    needed = {job: list_rights(KINDS, job, config, stream) for job in jobs}
    every = list(dict.fromkeys(right for rights in needed.values() for right in rights))
    lines = [
        f"| on | operation | to | {' | '.join(jobs)} |",
        f"|---|---|---|{':-:|' * len(jobs)}",
    ]
    for place in dict.fromkeys(map(_name, every)):
        for right in _merge(one for one in every if _name(one) == place):
            marks = [
                "✓" if any(_is_same(right, one) for one in needed[job]) else "" for job in jobs
            ]
            word = right.operation.name
            lines.append(f"| {place} | {word} | {right.purpose} | {' | '.join(marks)} |")
    return "\n".join(lines) + "\n"


def render_actions() -> str:
    """By right the actions of an IAM policy."""
    lines = ["| on | operation | actions (`kafka-cluster:`) |", "|---|---|---|"]
    lines += [
        f"| {resource} | {operation.name} | {', '.join(f'`{name}`' for name in names)} |"
        for (resource, operation), names in IAM_ACTIONS.items()
    ]
    return "\n".join(lines) + "\n"


def render_page(page: str) -> str:
    """The page with the tables as they are now."""
    for begin, table in ((_BEGIN, render_table()), (_BEGIN_IAM, render_actions())):
        head, _, rest = page.partition(begin)
        tail = rest.partition(_END)[2]
        page = f"{head}{begin}\n\n{table}\n{_END}{tail}"
    return page


def _merge(rights: Iterable[Right]) -> list[Right]:
    found: dict[object, Right] = {}
    for right in rights:
        found.setdefault(right.operation, right)
    return list(found.values())


def _is_same(one: Right, other: Right) -> bool:
    return (_name(one), one.operation) == (_name(other), other.operation)


def _name(right: Right) -> str:
    if right.resource is Resource.CLUSTER:
        return "the cluster"
    word = {"transactional-id": "transactional ids"}.get(right.resource, right.resource.value)
    return f"{word} `{right.name}{'*' if right.prefixed else ''}`"


def main() -> None:
    PAGE.write_text(render_page(PAGE.read_text()))


if __name__ == "__main__":
    main()
