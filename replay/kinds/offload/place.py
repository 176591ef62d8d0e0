"""Where an archive goes: whether it has room, and whether it is on a broker's own disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import urlsplit

from backlog.config import Config
from backlog.kafka.log_dirs import BrokerLogDirs, LogDirs
from backlog.numbers import format_bytes
from fanout.disk import SAFETY
from replay.kinds.offload.plan import PlannedPlace

_ARCHIVES = "archives"
# Each of a broker's log directories has this file.
_BROKERS_FILE = "meta.properties"
_SAME_DISK = 1 << 20


def name_place(config: Config, recovery_id: str) -> str:
    """The archive's folder or URL, each recovery's own."""
    base = config.staging.archive or str(config.staging.dir / _ARCHIVES)
    return f"{base.rstrip('/')}/{recovery_id}"


def find_path(location: str) -> Path | None:
    """The folder of a location on this machine's file systems; None in an object store."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        return None
    return Path(parts.path if parts.scheme else location).absolute()


def look_at_place(location: str, unread_bytes: int | None, log_dirs: LogDirs) -> PlannedPlace:
    """What is known of it now; changes nothing."""
    needed = None if unread_bytes is None else round(unread_bytes * SAFETY)
    path = find_path(location)
    if path is None:
        return PlannedPlace(
            location=location,
            needed=needed,
            free=None,
            enough=True,
            on_broker=False,
            told="an object store: its room is not measured",
        )
    there = _find_existing(path)
    free = shutil.disk_usage(there).free
    broker, unseen = _find_broker(there, log_dirs)
    told = f"{format_bytes(free)} are free, "
    if needed is None:
        told += f"and what is needed is not known: {log_dirs.reason or 'sizes are not told'}"
    else:
        told += f"and at most about {format_bytes(needed)} are needed"
    if broker is not None:
        told += f"; it is on the disk of broker {broker}: it would fill what it is to free"
    elif unseen:
        told += f"; whether it is on a broker's own disk is not known: {unseen}"
    return PlannedPlace(
        location=location,
        needed=needed,
        free=free,
        enough=None if needed is None else needed <= free,
        on_broker=True if broker is not None else (None if unseen else False),
        told=told,
    )


def say_problem(place: PlannedPlace) -> str:
    """Why an archive should not go there; "" where nothing speaks against it."""
    if place.on_broker or place.enough is None:
        return place.told
    return "" if place.enough else f"there is not enough room: {place.told}"


def _find_existing(path: Path) -> Path:
    """The folder itself, or the nearest one above that is there."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _is_another(directory: str, broker: BrokerLogDirs) -> bool:
    """Whether the folder that we see is on another disk than the one that the broker sees there: it
    runs in a container, or mounts its own."""
    if broker.total_bytes is None or len(broker.directories) > 1:
        return False
    return abs(shutil.disk_usage(directory).total - broker.total_bytes) > _SAME_DISK


def _find_broker(there: Path, log_dirs: LogDirs) -> tuple[int | None, str]:
    """The broker whose disk it is; else why that is not known, "" where it is none's."""
    if log_dirs.brokers is None:
        return None, log_dirs.reason
    seen = False
    for broker in log_dirs.brokers:
        for directory in broker.directories:
            try:
                if not (Path(directory) / _BROKERS_FILE).is_file():
                    continue
                if _is_another(directory, broker):
                    continue
                seen = True
                if Path(directory).stat().st_dev == there.stat().st_dev:
                    return broker.broker, ""
            except OSError:
                continue
    return None, "" if seen else "the brokers' folders are not on this machine"
