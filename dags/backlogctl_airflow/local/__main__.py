"""`python -m backlogctl_airflow.local`: Airflow, Kafka and a shop in trouble, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from backlog.errors import BacklogError
from replay.cli.shared import make_console, show_error

_INTERRUPTED = 130


def start(
    port: Annotated[int, typer.Option(help="Airflow's; 0 takes a free one.", max=65535)] = 0,
    keep: Annotated[
        Path | None,
        typer.Option(help="Keep its files in this directory.", metavar="DIR", show_default=False),
    ] = None,
) -> None:
    """Starts Kafka, a shop in trouble and Airflow with the runbooks, until Ctrl-C."""
    from backlogctl_airflow.local.demo import open_place, show_shop
    from examples.stage import ending_on_sigterm

    try:
        console = make_console(stderr=False)
        with ending_on_sigterm(), open_place(keep, console) as place:
            show_shop(console, place, port)
    except BacklogError as error:
        raise typer.Exit(show_error(error, as_json=False)) from None
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None


if __name__ == "__main__":
    typer.run(start)
