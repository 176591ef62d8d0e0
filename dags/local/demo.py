"""A shop in trouble, with Airflow beside it: `make airflow`.

`orders` has lost 1,000 messages that can be rebuilt; `payments` is far behind, and its three
consumers go on working, too slowly. Kafka, the losses, the consumers and Airflow are real.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table

from backlogctl.clock import utc_now
from backlogctl.config import Stream, load_config
from backlogctl.dags.local.standalone import AirflowStandalone, User, check_port
from backlogctl.dags.policies import EXPAND_POOL, SPARK_POOL
from backlogctl.errors import BacklogError, UsageError
from backlogctl.fanout.launchers import Role
from backlogctl.formats import format_duration
from backlogctl.monitoring.watch.loop import watch_streams
from backlogctl.replay.cli.shared import make_console, show_error
from backlogctl.replay.consumers.fleet import fleet_of, launcher_of
from backlogctl.replay.engine.interrupts import Interrupts
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.opening import open_workspace
from backlogctl.replay.present.layout import Text
from backlogctl.sandbox.embedded import EmbeddedKafka
from examples.lost_orders import lose_orders, render_configuration
from examples.shop import (
    NewOrders,
    Size,
    await_commits,
    ending_consumers,
    make_backlog,
    render_stream,
)
from examples.stage import SHORT_LIVED_JVM

POOLS = {"backlogctl_spark": 1, "backlogctl_expand": 2}
POOL_NAMES = {SPARK_POOL: "backlogctl_spark", EXPAND_POOL: "backlogctl_expand"}
_INTERRUPTED = 130
WATCH_EVERY = timedelta(seconds=10)
# Half an hour of backlog for the usual consumers, and three minutes for ten times as many.
PAYMENTS = Size(orders=300_000, rate=120, arriving=200, topic="payments", group="payment-service")


class StepPrinter:
    """Says what is done, while it is done."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def doing(self, text: str) -> Iterator[None]:
        """One step; it turns while it lasts, and stays as a line with its time."""
        began = time.monotonic()
        with self._console.status(Text(f"{text} …")):
            yield
        took = format_duration(time.monotonic() - began)
        self._console.print(Text.assemble(("  ✔ ", "green"), text, (f"  {took}", "dim")))

    def say(self, text: str) -> None:
        """What goes on within a step."""
        self._console.print(Text(f"    {text}", style="dim"))


@contextmanager
def open_place(keep: Path | None, console: Console) -> Iterator[Path]:
    """A directory that is gone at the end, unless it was named, or something failed.
    Raises UsageError: there is something in it.
    """
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        if any(keep.iterdir()):
            raise UsageError(
                "there is something in it", subject=str(keep), hint="name a new directory"
            )
        yield keep.absolute()
        return
    place = Path(tempfile.mkdtemp(prefix="backlogctl-airflow-"))
    try:
        yield place
    except BacklogError:
        if any(place.iterdir()):
            console.print(Text(f"  its files and logs are still in {place}"), soft_wrap=True)
        else:
            place.rmdir()
        raise
    except KeyboardInterrupt:
        shutil.rmtree(place, ignore_errors=True)
        raise
    shutil.rmtree(place, ignore_errors=True)


def show_shop(console: Console, place: Path, port: int) -> None:
    """Starts everything, says where it is, and waits for Ctrl-C; then stops it all.

    Raises:
        KeyboardInterrupt: Ctrl-C, while it started; all is stopped.
        BacklogError: a part of it could not be started, or has ended.
    """
    check_port(port)  # before all that takes time
    steps = StepPrinter(console)
    with ExitStack() as stack:
        stack.callback(lambda: console.print("  everything was stopped"))
        with steps.doing("Kafka"):
            kafka = EmbeddedKafka.start(place / "kafka", progress=steps.say)
        stack.enter_context(kafka)
        config = write_demo_configuration(place, kafka.bootstrap)
        with steps.doing("10,000 orders, of which 1,000 are lost"):
            lose_orders(place, kafka.client_properties)
        with steps.doing(f"{PAYMENTS.orders:,} payments that wait, and slow consumers"):
            make_backlog(kafka.bootstrap, PAYMENTS)
            stack.enter_context(ending_consumers(place, kafka.bootstrap, PAYMENTS.topic))
            start_demo_consumers(config)
            await_commits(kafka.bootstrap, PAYMENTS)
            stack.enter_context(NewOrders(kafka.bootstrap, PAYMENTS, published=PAYMENTS.orders))
            stack.enter_context(watching(config))
        with steps.doing("Airflow"):
            airflow = AirflowStandalone.start(
                place / "airflow",
                config=config,
                port=port,
                extra_env={"JDK_JAVA_OPTIONS": SHORT_LIVED_JVM, **POOL_NAMES},
                progress=steps.say,
            )
            stack.enter_context(airflow)
            make_pools(airflow)
        print_welcome(console, airflow, config)
        try:
            airflow.wait()
        except KeyboardInterrupt:
            console.print("\n  stopping Airflow, the consumers and Kafka …")


def write_demo_configuration(place: Path, bootstrap: str) -> Path:
    """The shop's backlog.yaml."""
    text = render_configuration(utc_now()) + "\n" + render_stream(PAYMENTS)
    path = place / "backlog.yaml"
    path.write_text(text.replace("${env:SHOP_KAFKA}", bootstrap))
    return path


def start_demo_consumers(config: Path) -> None:
    """The usual consumers of the payments."""
    workspace, stream = _open(config)
    fleet = fleet_of(workspace, stream, Role.ORIGINAL)
    launcher_of(workspace, stream, lambda _: None).scale(fleet, PAYMENTS.partitions, lambda: None)


@contextmanager
def watching(config: Path) -> Iterator[None]:
    """What `backlogctl watch` does beside Airflow: samples, so that pages and plans know a pace."""
    workspace, _ = _open(config)
    ended = threading.Event()
    thread = threading.Thread(
        target=watch_streams, args=(workspace.config, workspace.ledger, WATCH_EVERY, ended)
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def make_pools(airflow: AirflowStandalone) -> None:
    """One Spark at a time: its plans and injections are of 2 GB each."""
    headers = {"Authorization": f"Bearer {airflow.log_in('admin')}"}
    for name, slots in POOLS.items():
        body = {"name": name, "slots": slots, "description": "backlogctl"}
        address = f"{airflow.address}/api/v2/pools"
        httpx.post(address, json=body, headers=headers, timeout=60).raise_for_status()


def print_welcome(console: Console, airflow: AirflowStandalone, config: Path) -> None:
    """Where it is, who may log in, and what to try."""
    people = Table.grid(padding=(0, 3))
    for user in airflow.users:
        people.add_row(Text(user.name, style="bold"), user.password, _describe(user))
    box = Table.grid()
    box.add_row(Text(airflow.address, style="bold green"))
    box.add_row(Padding(people, (1, 0)))
    box.add_row("1  Log in as oncall; open Dags, recover_backlog, and Trigger it for the stream")
    box.add_row("   orders (1,000 orders are lost) or payments (300,000 are waiting).")
    box.add_row("2  When its plan is made, it waits: look at it under Required Actions. Approve.")
    box.add_row("3  Watch it: Backlogs, on the left; its report is on the page of the recovery.")
    box.add_row("")
    box.add_row(Text(f"logs    {airflow.logs}", style="dim", overflow="fold"))
    box.add_row(Text(f"config  {config}", style="dim", overflow="fold"))
    console.print()
    console.print(
        Panel(box, title="Airflow", title_align="left", border_style="cyan", expand=False)
    )
    console.print("  [bold]Ctrl-C[/] stops everything.")


def _describe(user: User) -> str:
    return {"admin": "may do everything", "op": "on call: starts and approves"}[user.role]


def _open(config: Path) -> tuple[Workspace, Stream]:
    workspace = open_workspace(load_config(config))
    return workspace, workspace.config.stream(PAYMENTS.topic)


def main(
    port: Annotated[int, typer.Option(help="Airflow's; 0 takes a free one.", max=65535)] = 0,
    keep: Annotated[
        Path | None,
        typer.Option(help="Keep its files in this directory.", metavar="DIR", show_default=False),
    ] = None,
) -> None:
    """Starts Kafka, a shop in trouble and Airflow with the runbooks, until Ctrl-C."""
    try:
        console = make_console(stderr=False)
        with Interrupts(once=True).installed(), open_place(keep, console) as place:
            show_shop(console, place, port)
    except BacklogError as error:
        raise typer.Exit(show_error(error, as_json=False)) from None
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None


if __name__ == "__main__":
    typer.run(main)
