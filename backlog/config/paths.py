"""Relative paths of a configuration are relative to its file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from backlog.config.kafka_properties import FILE_PROPERTIES

DEFAULT_LEDGER = "sqlite:///backlog.db"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_SQLITE_FILE = re.compile(r"(sqlite(?:\+\w+)?:///)(?!/|:memory:|file:)([^?]+)(.*)", re.DOTALL)


def anchor_paths(data: Mapping[str, Any], base_dir: Path) -> dict[str, Any]:
    """The data with its relative paths, defaults too, made absolute from the file's directory."""
    anchored = {"ledger": DEFAULT_LEDGER, "staging": {}, **data}
    anchored["ledger"] = _anchor_url(anchored["ledger"], base_dir)
    staging = anchored["staging"]
    if isinstance(staging, Mapping):
        directory = staging.get("dir", "staging")
        if isinstance(directory, str):
            staging = {**staging, "dir": base_dir / Path(directory).expanduser()}
        archive = staging.get("archive")
        if isinstance(archive, str) and archive and not _URL.match(archive):
            staging = {**staging, "archive": str(base_dir / Path(archive).expanduser())}
        anchored["staging"] = staging
    if isinstance(streams := anchored.get("streams"), Mapping):
        anchored["streams"] = {
            name: _anchor_consumers(stream, base_dir) for name, stream in streams.items()
        }
    if isinstance(watch := anchored.get("watch"), Mapping):
        anchored["watch"] = _anchor_watch(watch, base_dir)
    if isinstance(look_back := anchored.get("look_back"), Mapping):
        found = _anchor_files(look_back, ("archive",), base_dir)
        anchored["look_back"] = _anchor_entry(found, {"database"}, base_dir)
    for section, names in (("sources", {"url"}), ("clusters", FILE_PROPERTIES)):
        entries = anchored.get(section)
        if isinstance(entries, Mapping):
            anchored[section] = {
                name: _anchor_entry(entry, names, base_dir) for name, entry in entries.items()
            }
    return anchored


def _anchor_watch(watch: Mapping[str, Any], base_dir: Path) -> dict[str, Any]:
    anchored = _anchor_files(watch, ("token_file",), base_dir)
    if isinstance(tls := anchored.get("tls"), Mapping):
        anchored["tls"] = _anchor_files(tls, ("certificate", "key"), base_dir)
    return anchored


def _anchor_files(
    section: Mapping[str, Any], names: Sequence[str], base_dir: Path
) -> dict[str, Any]:
    found = dict(section)
    for name in names:
        if isinstance(file := found.get(name), str):
            found[name] = base_dir / Path(file).expanduser()
    return found


def _anchor_consumers(stream: Any, base_dir: Path) -> Any:
    consumers = stream.get("consumers") if isinstance(stream, Mapping) else None
    if not isinstance(consumers, Mapping):
        return stream
    directory = consumers.get("directory")
    if directory is not None and not isinstance(directory, str):
        return stream
    anchored = base_dir / Path(directory or "").expanduser()
    return {**stream, "consumers": {**consumers, "directory": anchored}}


def _anchor_entry(entry: Any, names: set[str] | frozenset[str], base_dir: Path) -> Any:
    if not isinstance(entry, Mapping):
        return entry
    return {
        name: value
        if name not in names or not isinstance(value, str)
        else _anchor_url(value, base_dir)
        if name in ("url", "database")
        # librdkafka's own word: look in the usual places.
        else (value if value == "probe" else str(base_dir / Path(value).expanduser()))
        for name, value in entry.items()
    }


def _anchor_url(url: Any, base_dir: Path) -> Any:
    found = _SQLITE_FILE.fullmatch(url) if isinstance(url, str) else None
    return f"{found[1]}{base_dir / found[2]}{found[3]}" if found else url
