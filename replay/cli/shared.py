"""What every verb shares: `--config` and `--json`, where output goes, and how errors look."""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, TypeVar

import typer

from backlogctl.errors import BacklogError, ConfigurationError, UsageError

if TYPE_CHECKING:
    from datetime import timedelta

    from rich.console import Console, RenderableType

    from backlogctl.config import Config
    from backlogctl.replay.engine.kind import Workspace

    Parts = RenderableType | Iterable[RenderableType] | Callable[[], RenderableType]

P = ParamSpec("P")
E = TypeVar("E", bound=StrEnum)

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="The configuration; else BACKLOG_CONFIG, else ./backlog.yaml.",
        rich_help_panel="Everywhere",
        show_default=False,
        metavar="FILE",
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option("--json", help="One JSON document on stdout.", rich_help_panel="Everywhere"),
]


# Of every JSON document. Fields are added without a new one; one that goes or changes needs it.
SCHEMA_VERSION = 1


class Session:
    """One call of the command: how it was called, and its two outputs.

    With `--json` the process's own stdout is turned to stderr at the level of file descriptors,
    so that nothing, not even a JVM, can write beside the one document.
    """

    def __init__(self) -> None:
        self.config_path: Path | None = None
        self.json = False
        self._document_fd: int | None = None
        self._out: Console | None = None
        self._err: Console | None = None

    def note(self, config: Path | None, as_json: bool) -> None:
        """Takes the shared options, wherever they stood."""
        if config is not None:
            self.config_path = config
        if as_json and not self.json:
            self.json = True
            sys.stdout.flush()
            self._document_fd = os.dup(1)
            os.dup2(2, 1)

    @property
    def out(self) -> Console:
        """Tables for people, on stdout (on stderr with `--json`)."""
        if self._out is None:
            self._out = make_console(stderr=False)
        return self._out

    @property
    def err(self) -> Console:
        """Messages and progress."""
        if self._err is None:
            self._err = make_console(stderr=True)
        return self._err

    def emit(self, document: Mapping[str, Any], *parts: Parts) -> None:
        """Prints a verb's result: the document with `--json`, else the parts, one below the other.

        With `--json` functions among them are not called, nor generators asked for their parts.
        """
        if self.json:
            self.write_document(document)
        else:
            show(self.out, *parts)

    def write_document(self, document: Mapping[str, Any]) -> None:
        """Writes the one JSON document."""
        document = {"schema_version": SCHEMA_VERSION, **document}
        text = json.dumps(document, indent=2, ensure_ascii=False, default=str) + "\n"
        write_all(1 if self._document_fd is None else self._document_fd, text)

    def say(self, text: str, style: str = "") -> None:
        """A message for people on stderr, printed as it is."""
        from backlogctl.replay.present.layout import Text

        show(self.err, Text(text, style))

    def find_config_path(self) -> Path | None:
        """`--config`, else `BACKLOG_CONFIG`, else ./backlog.yaml where it exists."""
        if self.config_path is not None:
            return self.config_path
        if named := os.environ.get("BACKLOG_CONFIG"):
            return Path(named)
        default = Path("backlog.yaml")
        return default if default.exists() else None

    def load_config(self) -> Config:
        """Reads the configuration.

        Raises:
            ConfigurationError: there is none, or it is wrong.
        """
        from backlogctl.config import load_config

        path = self.find_config_path()
        if path is None:
            raise ConfigurationError(
                "there is no configuration",
                subject="./backlog.yaml",
                hint="write one with `backlogctl init`, or name one with --config FILE",
            )
        return load_config(path)

    def open_workspace(self) -> Workspace:
        """Configuration and ledger, opened."""
        from backlogctl.replay.opening import open_workspace

        return open_workspace(self.load_config())


def make_console(*, stderr: bool) -> Console:
    """A console that cuts nothing, and does not break lines of a pipe at 80 columns."""
    from backlogctl.replay.present.layout import WholeConsole

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else 100
    return WholeConsole(stderr=stderr, width=width, highlight=False)


def show(console: Console, *parts: Parts) -> None:
    """Prints each part; names and reasons in a text are not markup, and a pipe gets it whole."""
    from backlogctl.replay.present.layout import Text, print_wrapped

    for known in parts:
        part = known() if callable(known) else known
        for one in part if isinstance(part, Iterable) and not isinstance(part, str) else (part,):
            if isinstance(one, str | Text):
                print_wrapped(console, Text(one) if isinstance(one, str) else one)
            else:
                console.print(one)


def write_all(descriptor: int, text: str) -> None:
    """Writes a text to a file that is open, however often that takes."""
    data = text.encode()
    while data:
        data = data[os.write(descriptor, data) :]


SESSION = Session()


def verb(
    function: Callable[Concatenate[Session, P], None],
) -> Callable[..., None]:
    """Gives a verb's function `--config` and `--json`, and hands it the session."""
    signature = inspect.signature(function)
    hints = typing.get_type_hints(function, include_extras=True)
    parameters = [
        parameter.replace(annotation=hints.get(name, parameter.annotation))
        for name, parameter in list(signature.parameters.items())[1:]
    ]
    shared = {"config": ConfigOption, "as_json": JsonOption}
    defaults = {"config": None, "as_json": False}
    for name, annotation in shared.items():
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults[name],
                annotation=annotation,
            )
        )

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        config = typing.cast("Path | None", kwargs.pop("config", None))
        SESSION.note(config, bool(kwargs.pop("as_json", False)))
        function(SESSION, *args, **kwargs)

    del call.__dict__["__wrapped__"]
    call.__dict__["__signature__"] = inspect.Signature(parameters)
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def read_states(known: type[E], words: Sequence[str] | None) -> list[E] | None:
    """The states of `--state`; None where none is named.

    Raises:
        UsageError: there is no such state.
    """
    names = [member.value for member in known]
    for word in words or ():
        if word not in names:
            raise UsageError(f"no such state: {word}", hint=f"one of {', '.join(names)}")
    return [known(word) for word in words] if words else None


def read_duration(text: str, option: str) -> timedelta:
    """An option's duration.

    Raises:
        UsageError: it is none.
    """
    from backlogctl.clock import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(str(error), subject=option) from None


def check_allowed(allow: Sequence[str] | None, known: str) -> None:
    """Of `--allow` there is one word.

    Raises:
        UsageError: another one is said.
    """
    for word in allow or ():
        if word != known:
            raise UsageError(f"only {known} can be allowed, not {word}", subject="--allow")


def mask_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """An error's document without secrets."""
    from backlogctl.config import mask_secrets

    return {
        key: mask_secrets(value) if isinstance(value, str) else value
        for key, value in document.items()
    }


def show_error(error: BaseException, *, as_json: bool) -> int:
    """Prints an error as the caller wants it; returns the exit code."""
    from backlogctl.config import mask_secrets
    from backlogctl.extras import explain_import
    from backlogctl_delivery.visible import escape_trace

    error = explain_import(error) or error
    if isinstance(error, BacklogError):
        document = error.to_json()
        code = error.exit_code
    else:
        document = {
            "code": "bug",
            "message": f"{type(error).__name__}: {error}".splitlines()[0],
            "subject": "",
            "hint": "this is a bug; run again with BACKLOG_DEBUG=1 for the traceback",
            "retryable": False,
        }
        code = 1
    document = mask_document(document)
    standing = mask_document(getattr(error, "standing", None) or {})
    commands = list(getattr(error, "next_commands", ()))
    if as_json:
        SESSION.note(None, True)
        told = {"standing": standing, "next_commands": commands}
        told = {name: value for name, value in told.items() if value}
        SESSION.write_document({"error": document, **told})
    else:
        _print_error(document)
        if standing or commands:
            from backlogctl.replay.present.terminal import render_next, render_standings

            show(SESSION.err, render_standings([standing]) if standing else render_next(*commands))
    if os.environ.get("BACKLOG_DEBUG") == "1":
        import traceback

        text = "".join(traceback.format_exception(error))
        sys.stderr.write(escape_trace(mask_secrets(text)))
    return code


def _print_error(document: Mapping[str, Any]) -> None:
    from backlogctl.replay.present.layout import Text

    text = Text("error: ", style="bold red")
    if document["subject"]:
        text.append(f"{document['subject']}: ", style="bold default")
    text.append(str(document["message"]), style="default")
    show(SESSION.err, text)
    if document["hint"]:
        SESSION.say(f"hint: {document['hint']}", "cyan")
