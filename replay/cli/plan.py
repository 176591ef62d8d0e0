"""`backlogctl plan`: what would be done, computed and stored; nothing is changed."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from replay.cli.shared import Session, verb

plan = typer.Typer(help="Plan a recovery; nothing is changed.", no_args_is_help=True)


@plan.callback()
def _plan() -> None:
    """Plan a recovery; nothing is changed."""


@plan.command("rebuild")
@verb
def plan_rebuild(
    session: Session,
    stream: Annotated[str, typer.Argument(help="The stream that lost messages.")],
    since: Annotated[
        str | None, typer.Option(help="Read source rows from this time on, and `margin` before it.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Read source rows up to this time, and `margin` beyond it.")
    ] = None,
    gap: Annotated[list[str] | None, typer.Option(help="Only this gap; may be said again.")] = None,
    allow: Annotated[
        list[str] | None, typer.Option(help="`surplus`, `proof` or `ledger`: go on in spite of it.")
    ] = None,
) -> None:
    """Rebuild lost messages from the source table: find, compare, prove and stage them."""
    from rich.console import Console

    from backlog.errors import UsageError
    from replay.plans import ALLOWED, PlanOptions
    from replay.plans import plan_rebuild as make_plan
    from replay.progress import spin
    from replay.rendering import draw_plan, print_next
    from replay.views import describe_recovery, list_next_commands

    for word in allow or []:
        if word not in ALLOWED:
            raise UsageError(
                f"{word!r} cannot be allowed",
                subject="--allow",
                hint=f"one of {', '.join(ALLOWED)}",
            )
    workspace = session.open_workspace()
    chosen = workspace.config.stream(stream)
    zone = "UTC"
    if chosen.source is not None:
        zone = workspace.config.sources[chosen.source.database].timezone
    options = PlanOptions(
        since=_read_time(since, "--since", zone),
        until=_read_time(until, "--until", zone),
        gap_ids=tuple(gap or ()),
        allow=frozenset(allow or ()),
    )
    if options.since and options.until and options.since >= options.until:
        raise UsageError("--since is not before --until", subject="--since")
    with spin(session.err) as tell:
        recovery = make_plan(workspace, chosen, options, tell)
    document = describe_recovery(recovery)

    def show(console: Console) -> None:
        console.print(draw_plan(document))
        print_next(console, *list_next_commands(recovery))

    session.emit(document, show)


@plan.command("expand")
@verb
def plan_expand(
    session: Session,
    stream: Annotated[str, typer.Argument(help="The stream that is behind.")],
    rate: Annotated[
        float | None,
        typer.Option(help="Messages one consumer handles a second; else measured from samples."),
    ] = None,
    factor: Annotated[
        int | None, typer.Option(help="Temporary partitions per partition; else `expand.factor`.")
    ] = None,
    order: Annotated[
        str | None, typer.Option(help="`key` or `round_robin`; else `expand.order`.")
    ] = None,
    start: Annotated[
        str, typer.Option(help="Where partitions without a commit begin: `earliest` or `latest`.")
    ] = "earliest",
    allow: Annotated[
        list[str] | None, typer.Option(help="`disk`: go on though the copy does not fit.")
    ] = None,
) -> None:
    """Drain a backlog through a temporary topic with many partitions and consumers."""
    from rich.console import Console

    from replay.expand_plans import ExpandOptions
    from replay.expand_plans import plan_expand as make_plan
    from replay.expand_rendering import draw_expand_plan
    from replay.progress import spin
    from replay.rendering import print_next
    from replay.views import describe_recovery, list_next_commands

    options = ExpandOptions(rate, factor, order, start, frozenset(allow or ()))
    options.check()
    workspace = session.open_workspace()
    chosen = workspace.config.stream(stream)
    with spin(session.err) as tell:
        recovery = make_plan(workspace, chosen, options, tell)
    document = describe_recovery(recovery)

    def show(console: Console) -> None:
        console.print(draw_expand_plan(document))
        print_next(console, *list_next_commands(recovery))

    session.emit(document, show)


def _read_time(text: str | None, option: str, zone: str) -> datetime | None:
    from zoneinfo import ZoneInfo

    from backlog.clock import parse_time
    from backlog.errors import UsageError

    if text is None:
        return None
    try:
        return parse_time(text, ZoneInfo(zone))
    except ValueError as error:
        raise UsageError(
            f"{text!r} is not a time in ISO 8601",
            subject=option,
            hint=f"such as 2026-11-21T08:00 ({zone}) or 2026-11-21T08:00:00Z",
        ) from error
