"""The part of backlog.yaml that a scheduler shows before anything runs; no secret is resolved.

A missing or wrong file becomes the outline's `problem`; the first task reports it again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from backlog.config.base import check_label
from backlog.config.documents import DocumentError, read_document
from backlog.config.references import resolve_references
from backlog.config.root import DEFAULT_FILE
from backlog.config.streams import OffPeak


@dataclass(frozen=True, slots=True)
class StreamOutline:
    """One stream; `off_peak` is None where it may be repaired at any time."""

    name: str
    rebuilds: bool
    off_peak: OffPeak | None


@dataclass(frozen=True, slots=True)
class Outline:
    """Streams in the file's order; `problem` is why there may be none, or not all."""

    file: Path
    streams: tuple[StreamOutline, ...] = ()
    problem: str = ""


def read_outline(path: Path | None = None, env: Mapping[str, str] | None = None) -> Outline:
    """Names and windows of the streams of the file that `load_config` would read."""
    env = os.environ if env is None else env
    file = path or Path(env.get("BACKLOG_CONFIG") or DEFAULT_FILE)
    try:
        data = read_document(file.read_text(encoding="utf-8")).data
    except FileNotFoundError:
        return Outline(file, problem=f"there is no file {file}")
    except (OSError, UnicodeDecodeError) as error:
        return Outline(file, problem=f"{file} cannot be read: {type(error).__name__}")
    except DocumentError as error:
        return Outline(file, problem=f"{file}: {error.problem}")
    streams = data.get("streams")
    if not isinstance(streams, Mapping) or not streams:
        return Outline(file, problem=f"{file} has no streams")
    found = [_read_stream(name, entry, env, file) for name, entry in streams.items()]
    good = tuple(stream for stream in found if stream is not None)
    return Outline(file, good, "" if len(good) == len(found) else f"{file}: a stream is not right")


def _read_stream(name: str, entry: Any, env: Mapping[str, str], file: Path) -> StreamOutline | None:
    try:
        check_label(name)
        if not isinstance(entry, Mapping):
            return None
        window = entry.get("off_peak")
        if window is not None:
            # A zone or an hour may come from the environment; neither is a secret.
            found = resolve_references({"off_peak": window}, env, file.absolute().parent)
            window = found.data["off_peak"]
        off_peak = None if window is None else OffPeak.model_validate(window)
    except (ValueError, ValidationError):
        return None
    return StreamOutline(name, entry.get("source") is not None, off_peak)
