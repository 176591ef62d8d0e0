"""`backlogctl archive`: what offloads have moved off the brokers, and what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from backlogctl.replay.cli.shared import Session, check_allowed, verb

if TYPE_CHECKING:
    from backlogctl.replay.engine.archives import ArchiveState

archive = typer.Typer(help="See, verify and delete archives of offloaded messages.")

ArchiveId = Annotated[str, typer.Argument(help="The archive's id: that of the offload.")]


@archive.command("list")
@verb
def list_all(
    session: Session,
    stream: Annotated[str | None, typer.Option(help="Only this stream's.")] = None,
) -> None:
    """List archives, oldest first: what is put back, what still waits, and missing files."""
    from backlogctl.replay.engine.archives import list_archives
    from backlogctl.replay.observe.archives import describe_archive
    from backlogctl.replay.present.tables import render_archives

    workspace = session.open_workspace()
    if stream is not None:
        workspace.config.stream(stream)
    found = list_archives(workspace, stream)
    document = {"archives": [describe_archive(workspace, state) for state in found]}
    session.emit(document, lambda: render_archives(document["archives"]))


@archive.command("show")
@verb
def show(session: Session, archive: ArchiveId) -> None:
    """Show what an archive holds, by partition, and what became of it."""
    from backlogctl.replay.engine.archives import find_archive, is_given_up
    from backlogctl.replay.observe.archives import describe_whole
    from backlogctl.replay.present.tables import render_archive
    from backlogctl.replay.present.terminal import render_next

    workspace = session.open_workspace()
    state = find_archive(workspace, archive)
    document = describe_whole(workspace, state)
    commands = _list_next(state, given_up=is_given_up(workspace.ledger, archive))
    session.emit(document, render_archive(document), render_next(*commands))


@archive.command("peek")
@verb
def peek_messages(
    session: Session,
    archive: ArchiveId,
    partition: Annotated[int | None, typer.Option(min=0, help="Only of this partition.")] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="From this offset on.")] = None,
    key: Annotated[str | None, typer.Option(help="Only of this key.")] = None,
    count: Annotated[int, typer.Option("-n", "--count", min=1, max=1000, help="How many.")] = 10,
) -> None:
    """Show some messages; what the stream's `mask` names is hidden."""
    from backlogctl.replay.observe.archives import peek
    from backlogctl.replay.present.messages import Mask, mask_message, render_message
    from backlogctl.schemas.codecs import PartDecoder, list_formats
    from backlogctl.spark_backfill.archive.peek import Wanted

    workspace = session.open_workspace()
    record = workspace.ledger.archives.get(archive)
    # Of a stream that the configuration no longer has nobody knows what is personal.
    stream = workspace.config.stream(record.stream)
    mask = Mask.read(stream.mask)
    decoder = PartDecoder(list_formats(stream, workspace.config.registries))
    wanted = Wanted(partition, offset, None if key is None else key.encode(), count)
    shown = [
        mask_message(
            mask,
            partition=one.partition,
            offset=one.offset,
            timestamp=one.timestamp if one.timestamp_type >= 0 else None,
            key=one.key,
            value=one.value,
            headers=one.headers,
            decoder=decoder,
        )
        for one in peek(workspace, record, wanted)
    ]
    document = {"archive": archive, "messages": [message.to_json() for message in shown]}
    parts = [part for message in shown for part in ("", render_message(message))]
    session.emit(document, parts[1:] or "no such message is in the archive")


@archive.command("verify")
@verb
def verify_files(session: Session, archive: ArchiveId) -> None:
    """Read every file of an archive, and compare it with what was recorded.

    Exit code: 0 all is there as it was written, 1 it is not.
    """
    from backlogctl.replay.observe.archives import describe_check, verify_archived
    from backlogctl.replay.present.layout import spin
    from backlogctl.replay.present.tables import render_check

    workspace = session.open_workspace()
    record = workspace.ledger.archives.get(archive)
    with spin(session.err) as say:
        say(f"reading {record.location}")
        check = verify_archived(workspace, record)
    document = describe_check(record, check)
    session.emit(document, render_check(document))
    if not check.is_good:
        raise typer.Exit(1)


@archive.command("purge")
@verb
def purge_files(
    session: Session,
    archive: ArchiveId,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="`lose`: messages that wait in it are lost; their gaps are waived."),
    ] = None,
) -> None:
    """Delete an archive's files; what it held stays on record."""
    from backlogctl.formats import format_bytes, format_plural
    from backlogctl.replay.engine.archives import ALLOW_LOSE, find_archive, purge

    check_allowed(allow, ALLOW_LOSE)
    workspace = session.open_workspace()
    before = find_archive(workspace, archive)
    purged = purge(workspace, archive, allow or ())
    waived = [gap.id for gap in before.list_gaps("waiting")]
    document: dict[str, Any] = {
        "id": archive,
        "files": purged.files,
        "bytes": purged.bytes,
        "waived": waived,
    }
    lines = [
        f"archive {archive} is purged: {format_plural(purged.files, 'file')}, "
        f"{format_bytes(purged.bytes)} are deleted",
        *([f"waived: {', '.join(waived)}"] if waived else []),
        "what it held by partition stays in the ledger, and the ids of what was put back stay in "
        "`staging.dir`",
    ]
    session.emit(document, lines)


def _list_next(state: ArchiveState, *, given_up: bool) -> list[str]:
    from backlogctl.replay.engine.archives import ALLOW_LOSE, ARCHIVE
    from backlogctl.replay.injection.archived import name_redrive

    if state.record.purged_at is not None:
        return []
    needed = (*state.list_gaps("waiting"), *state.elsewhere)
    if needed and not given_up:
        source = f"{ARCHIVE}:{state.record.recovery_id}"
        return [name_redrive(name, source) for name in sorted({gap.stream for gap in needed})]
    purge = f"backlogctl archive purge {state.record.recovery_id}"
    if needed:
        return [f"{purge} --allow {ALLOW_LOSE}"]
    return [purge] if state.expires_at is not None else []
