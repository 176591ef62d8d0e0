"""`backlogctl init`: a commented configuration to start from, or one of a cluster's groups."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backlogctl.replay.cli.shared import Session, mask_document, verb

if TYPE_CHECKING:
    from backlogctl.config.template import ClientProperties, DiscoveredStream
    from backlogctl.replay.observe.discovery import Candidate, Discovery
    from backlogctl.spark_backfill.sources.outboxes import FoundOutbox

_CLUSTER = "From a cluster"
_DATABASE = "From a database"


@verb
def write_configuration(
    session: Session,
    output: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("backlog.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap",
            help="Look for consumer groups at these brokers, HOST:PORT, and write streams.",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    client_properties: Annotated[
        Path | None,
        typer.Option(
            "--client-properties",
            help="librdkafka properties for it (login, TLS), one name=value a line.",
            metavar="FILE",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            "--group",
            help="Take this group, or those that fit this pattern; again for more.",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    every: Annotated[
        bool,
        typer.Option("--all", help="Take every group.", rich_help_panel=_CLUSTER),
    ] = False,
    database: Annotated[
        str | None,
        typer.Option(
            "--database",
            help="Look for outboxes in this database, and write sources. An SQLAlchemy URL, its "
            "password as '${env:NAME}'.",
            metavar="URL",
            rich_help_panel=_DATABASE,
        ),
    ] = None,
) -> None:
    """Write a backlog.yaml to start from: commented, or with what a cluster or a database has."""
    from backlogctl.config import render_template
    from backlogctl.errors import UsageError

    if bootstrap is None and client_properties is None:
        if group or every:
            option = "--group" if group else "--all"
            raise UsageError(f"{option} goes with --bootstrap HOST:PORT", subject=option)
        if database is not None:
            # Who reads the topics, and where they are, is to be filled in.
            _refuse_existing(output, force)
            client = _read_client("localhost:9092", None)
            nothing: dict[str, Any] = {"skipped": [], "unknown": []}
            _write_streams(session, output, force, client, None, nothing, database)
            return
        _write(output, render_template(), force)
        session.emit(
            {"file": str(output)},
            f"wrote {output}: fill in cluster, source and stream, then `backlogctl status`",
        )
        return
    if group and every:
        raise UsageError("--group and --all exclude each other", subject="--all")
    _refuse_existing(output, force)
    client = _read_client(bootstrap, client_properties)
    _write_found(session, output, force, client, group, every, database)


def _read_client(bootstrap: str | None, file: Path | None) -> ClientProperties:
    from backlogctl.config.template import ClientProperties, read_client_properties
    from backlogctl.errors import UsageError

    if bootstrap is not None and not bootstrap.strip():
        raise UsageError("it is empty: say HOST:PORT", subject="--bootstrap")
    if file is not None:
        return read_client_properties(file, bootstrap)
    return ClientProperties({"bootstrap.servers": bootstrap or ""})


def _look_into(
    session: Session, output: Path, client: ClientProperties, url: str
) -> list[FoundOutbox]:
    from backlogctl.config import Config
    from backlogctl.config.template import render_discovered
    from backlogctl.replay.observe.outbox_sources import look_for_outboxes, name_database
    from backlogctl.replay.present.layout import spin

    name = name_database(url)
    text = render_discovered(client.properties, (), {name: url})
    environment = {**os.environ, **client.values}
    config = Config.from_text(text, output.absolute().parent, environment, file=str(output))
    with spin(session.err) as say:
        say(f"looking for outboxes in {name}")
        return look_for_outboxes(config, name)


def _write_found(
    session: Session,
    output: Path,
    force: bool,
    client: ClientProperties,
    patterns: list[str] | None,
    every: bool,
    database: str | None,
) -> None:
    from backlogctl.config import Config
    from backlogctl.config.template import render_discovered
    from backlogctl.replay.observe import discovery
    from backlogctl.replay.present.layout import spin
    from backlogctl.replay.present.tables import render_groups

    # What the variables will hold; those that are set already may hold something else.
    environment = {**os.environ, **client.values}
    folder = output.absolute().parent
    only_cluster = render_discovered(client.properties, ())
    config = Config.from_text(only_cluster, folder, environment, file=str(output))
    with spin(session.err) as say:
        say(f"looking at the groups of {client.properties['bootstrap.servers']}")
        found = discovery.discover_groups(config)
    document = discovery.describe_discovery(found)
    asked = not (patterns or every)
    if asked and not session.json:
        session.out.print(render_groups(document))
    if patterns:
        chosen = discovery.choose_groups(found, patterns)
    elif every:
        chosen = discovery.choose_all(found)
    elif found.choosable and not session.json and sys.stdin.isatty() and sys.stdout.isatty():
        chosen = _ask(found)
    else:
        error = discovery.refuse_choiceless(found)
        if not session.json:
            raise error
        session.write_document({"file": None, **document, "error": mask_document(error.to_json())})
        raise typer.Exit(error.exit_code)
    streams = discovery.name_chosen(chosen)
    skipped = discovery.list_skipped(found, chosen, every=every)
    document = {**discovery.describe_discovery(found, streams), "skipped": skipped}
    _write_streams(session, output, force, client, streams, document, database)


def _write_streams(
    session: Session,
    output: Path,
    force: bool,
    client: ClientProperties,
    streams: list[DiscoveredStream] | None,
    document: dict[str, Any],
    database: str | None,
) -> None:
    """`streams`: those of the groups that were chosen; None for those of the outboxes."""
    from backlogctl.config import Config, load_config
    from backlogctl.config.template import render_discovered
    from backlogctl.replay.observe.outbox_sources import (
        add_sources,
        make_streams,
        name_database,
        render_notes,
    )

    environment = {**os.environ, **client.values}
    outboxes = _look_into(session, output, client, database) if database else []
    streams = make_streams(outboxes) if streams is None else streams
    streams, uses = add_sources(streams, outboxes)
    sources = {name_database(database): database} if database else None
    text = render_discovered(client.properties, streams, sources, render_notes(uses))
    Config.from_text(text, output.absolute().parent, environment, file=str(output))
    _write(output, text, force)
    load_config(output, environment)
    if database:
        document["outboxes"] = [one.to_json() for one in uses]
    _say_written(session, output, client, streams, document)
    if not session.json:
        for one in uses:
            session.say(f"! {one.describe()}", "yellow")


def _ask(found: Discovery) -> list[Candidate]:
    from backlogctl.errors import BacklogError, UsageError
    from backlogctl.replay.observe.discovery import read_choice

    def read(answer: str) -> list[Candidate]:
        try:
            return read_choice(found, answer)
        except BacklogError as error:
            told = error.message if isinstance(error, UsageError) else str(error)
            raise typer.BadParameter(told) from error

    asked = "Which groups? Numbers (1 3-5), names, patterns, or all"
    chosen: list[Candidate] = typer.prompt(asked, value_proc=read)
    return chosen


def _say_written(
    session: Session,
    output: Path,
    client: ClientProperties,
    streams: list[DiscoveredStream],
    document: dict[str, Any],
) -> None:
    from backlogctl.formats import format_plural
    from backlogctl.replay.present.terminal import render_next
    from backlogctl_delivery.visible import quote_word

    if client.left_out:
        session.say(f"left out, since backlogctl sets them itself: {', '.join(client.left_out)}")
    is_default = output.absolute() == (session.find_config_path() or Path()).absolute()
    named = "" if is_default else f" --config {quote_word(str(output))}"

    exports = [
        f"export {variable}=...   # the value of {name}"
        for variable, name in client.variables.items()
    ]
    session.emit(
        {"file": str(output), "environment": sorted(client.variables), **document},
        f"wrote {output}: {format_plural(len(streams), 'stream')}",
        [f"  {stream.name}" for stream in streams],
        render_next(*exports, f"backlogctl status{named}"),
    )
    if not session.json:
        for warning in (*document["skipped"], *document["unknown"]):
            session.say(f"! {warning}", "yellow")


def _refuse_existing(output: Path, force: bool) -> None:
    if not force and output.exists():
        raise _exists(output)


def _write(output: Path, text: str, force: bool) -> None:
    from backlogctl.errors import BacklogError

    try:
        with output.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise _exists(output) from error
    except OSError as error:
        raise BacklogError(f"could not write it: {error.strerror}", subject=str(output)) from error


def _exists(output: Path) -> Exception:
    from backlogctl.errors import UsageError

    return UsageError(
        "the file exists already",
        subject=str(output),
        hint="name another, or say --force, which replaces it",
    )


db = typer.Typer(help="The ledger's database.", no_args_is_help=True)


@db.callback()  # of one verb alone it would be no group
def _db() -> None:
    """The ledger's database."""


@db.command("upgrade")
@verb
def upgrade_database(session: Session) -> None:
    """Make or upgrade the ledger's tables (a SQLite ledger does so itself)."""
    from backlogctl.ledger import upgrade

    config = session.load_config()
    upgrade(config.ledger_url())
    session.emit({"ledger": "up to date"}, "the ledger is up to date")
