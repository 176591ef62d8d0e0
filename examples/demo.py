"""What backlogctl is for, told as stories with real parts: `python -m examples.demo [STORY]`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from backlogctl.errors import BacklogError
from backlogctl.replay.present.report_page import check_writable
from examples import expand, offload, rebuild
from examples.delivery import story as delivery

STORIES = {
    "rebuild": "lose 1,000 of 10,000 orders for real, and put exactly those back",
    "expand": "drain a backlog of 300,000 orders ten times as fast",
    "kubernetes": "the same with the pods of a Deployment; the runner is killed in the middle",
    "offload": "a disk is nearly full; move what is unread into an archive, and put it back",
    "delivery": "kill an outbox, look-back and their consumers; each order is handled once",
}
# Which options go with which stories.
TAKES = {
    "report": ("rebuild", "expand", "kubernetes", "offload"),
    "consumed": ("rebuild",),
    "secure": ("rebuild",),
    "avro": ("rebuild",),
}


class Result(Protocol):
    """What a story came to."""

    @property
    def passed(self) -> bool: ...

    def to_json(self) -> dict[str, Any]: ...


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description="Tell a story on a real Kafka that is gone afterwards (about a minute).",
        epilog="; ".join(f"{name}: {text}" for name, text in STORIES.items()),
    )
    parser.add_argument("story", nargs="?", choices=STORIES, default="rebuild")
    parser.add_argument("--report", type=Path, help="keep the incident report, as one HTML file")
    parser.add_argument(
        "--consumed",
        action="store_true",
        help="rebuild: the consumer keeps a table of what it handled, and the plan looks into it",
    )
    parser.add_argument(
        "--secure",
        action="store_true",
        help="rebuild: on a broker with logins over TLS and an authorizer, as a user with exactly "
        "the rights of `backlogctl acl`",
    )
    parser.add_argument(
        "--avro",
        action="store_true",
        help="rebuild: from a table in MariaDB, and values are Avro with a schema of a registry",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    for name, stories in TAKES.items():
        if getattr(options, name) and options.story not in stories:
            parser.error(f"--{name} goes with {' or '.join(stories)} only")
    return options


def tell(options: argparse.Namespace, console: Console) -> Result:
    report = options.report
    if report is not None:
        report.parent.mkdir(parents=True, exist_ok=True)
        check_writable(report)
    stories: dict[str, Callable[[], Result]] = {
        "rebuild": lambda: _tell_of_rows(console, options),
        "expand": lambda: expand.tell_story(console, report=report),
        "kubernetes": lambda: _tell_of_pods(console, report),
        "offload": lambda: offload.tell_story(console, report=report),
        "delivery": lambda: delivery.tell_story(console),
    }
    return stories[options.story]()


def _tell_of_rows(console: Console, options: argparse.Namespace) -> Result:
    # Servers that the tests run.
    if options.avro:
        from examples.avro import open_avro_shop
    with open_avro_shop() if options.avro else nullcontext() as avro:
        return rebuild.tell_story(
            console, options.report, consumed=options.consumed, secure=options.secure, avro=avro
        )


def _tell_of_pods(console: Console, report: Path | None) -> Result:
    # The API server is the tests', with more packages than other stories need.
    from examples import kubernetes

    return kubernetes.tell_story(console, report=report)


def main(arguments: Sequence[str] | None = None) -> int:
    options = read_options(arguments)
    try:
        result = tell(options, Console(stderr=options.json))
    except BacklogError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    if options.json:
        sys.stdout.write(json.dumps(result.to_json(), indent=2) + "\n")
    return 0 if result.passed else 1


if __name__ == "__main__":
    sys.exit(main())
