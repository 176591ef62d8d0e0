"""Secrets stand in the file only by reference: `${env:NAME}`, `${file:PATH}`, or, where Airflow
reads it, `${airflow:CONNECTION.FIELD}`; a whole section by its connection's id."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from backlogctl.config.documents import KeyPath
from backlogctl.config.kafka_properties import OWN_PROPERTIES, SECRET_PROPERTIES

_REFERENCE = re.compile(r"\$\{(env|file|airflow):([^{}]+)\}")
# Gives the field of a connection, `CONNECTION.FIELD`; "" where there is none.
FindConnection = Callable[[str], str]
# What a connection of Airflow's provider for Kubernetes has in `extra`, and its key here.
_KUBERNETES = {
    "namespace": "namespace",
    "cluster_context": "context",
    "kube_config_path": "kubeconfig",
    "kube_config": "kubeconfig_text",
}
_HOLE = "\0"
# A URL's user and password as SQLAlchemy reads them: the password ends at the first `@`.
_URL_PASSWORD = re.compile(r"^[\w+.\-]+://[^:/]*:([^@]*)@")
_URL_USER_PART = re.compile(r"^[\w+.\-]+://[^@]*@")
_ANY_URL_PASSWORD = re.compile(r"\b[\w+.\-]+://[^\s:/@]*:([^\s/@]+)@")
_QUERY_SECRET = re.compile(r"(?i)[?&;][\w.\-]*(?:password|passwd|pwd|secret|token)=([^&;]*)")
_SECRET_VARIABLE = re.compile(
    r"(?i)(?:password|passwd|secret|token|credentials?|access_?key|private_?key|api_?key)$"
)
_MAX_SECRET_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong at one key; `text` holds no secret."""

    path: KeyPath
    text: str


@dataclass(frozen=True)
class Resolved:
    """The data with every reference replaced.

    `values` are all values that references gave; `secrets` those that stand at a secret key.
    """

    data: dict[str, Any]
    problems: tuple[Problem, ...]
    values: frozenset[str]
    secrets: frozenset[str]

    def __repr__(self) -> str:
        return f"Resolved({len(self.values)} references)"


def is_secret(path: KeyPath) -> bool:
    """Whether the value at this key is held as a secret."""
    match path:
        case ("ledger",) | ("sources", _, "url") | ("look_back", "database"):
            return True
        case ("clusters", _, name):
            return name in SECRET_PROPERTIES
        case ("streams", _, "consumers", "environment", _):
            return True
        case ("watch", "hooks", _, "apprise" | "webhook" | "token"):
            return True
        case ("look_back", "services", _, "token"):
            return True
        case ("streams", _, "consumers", "kubernetes", "kubeconfig_text"):
            return True
    return False


def resolve_references(
    data: Mapping[str, Any],
    env: Mapping[str, str],
    base_dir: FilePath,
    find_connection: FindConnection | None = None,
) -> Resolved:
    """Replaces every reference in the values of a document (never in its keys).

    A reference within a URL's user or password is percent-encoded as it is put in, so the variable
    holds the password as it is. What a reference gives is not searched for references again.

    Args:
        base_dir: what relative `${file:...}` paths are relative to.
        find_connection: how `${airflow:...}` is looked up; None outside of Airflow.
    """
    worker = _Resolution(env, base_dir, find_connection)
    resolved = {key: worker.visit(value, (str(key),)) for key, value in data.items()}
    return Resolved(
        resolved, tuple(worker.problems), frozenset(worker.values), frozenset(worker.secrets)
    )


class _Resolution:
    def __init__(
        self, env: Mapping[str, str], base_dir: FilePath, find_connection: FindConnection | None
    ) -> None:
        self._find_connection = find_connection
        self._env = env
        self._base_dir = base_dir
        self.problems: list[Problem] = []
        self.values: set[str] = set()
        self.secrets: set[str] = set()

    def visit(self, value: Any, path: KeyPath) -> Any:
        if isinstance(value, Mapping):
            own = {key: self.visit(item, (*path, str(key))) for key, item in value.items()}
            return self._take_connection(own, path)
        if isinstance(value, list):
            return [self.visit(item, (*path, str(number))) for number, item in enumerate(value)]
        if is_secret(path) and value is not None and not isinstance(value, str):
            # `sasl.password: 1234` is a password too
            value = str(value).lower() if isinstance(value, bool) else str(value)
        return self._resolve(value, path) if isinstance(value, str) else value

    def _resolve(self, text: str, path: KeyPath) -> str:
        where = _reason_against_references(path)
        if where and _REFERENCE.search(text):
            return self._refuse(path, where)
        if where and path[0] == "streams":
            return text  # `${` may mean something to the database or the command
        holed = _REFERENCE.sub(_HOLE, text)
        if "${" in holed:
            return self._refuse(path, "a reference is written ${env:NAME} or ${file:PATH}")
        if _holds_literal_secret(holed, path):
            return self._refuse(
                path, "a secret is not written here: give it as ${env:NAME} or ${file:PATH}"
            )
        user_part = _URL_USER_PART.match(holed) if is_secret(path) else None
        pieces: list[str] = []
        end, shift = 0, 0
        for match in _REFERENCE.finditer(text):
            value = self._look_up(match.group(1), match.group(2), path)
            if value is None:
                return ""
            self.values.add(value)
            if is_secret(path):
                self.secrets.add(value)
            quoted = user_part is not None and match.start() - shift < user_part.end()
            pieces += [text[end : match.start()], quote(value, safe="") if quoted else value]
            end = match.end()
            shift += match.end() - match.start() - len(_HOLE)
        return "".join([*pieces, text[end:]])

    def _look_up(self, kind: str, name: str, path: KeyPath) -> str | None:
        if kind == "env":
            value = self._env.get(name, "")
            if not value:
                told = f"the environment variable {name} is not set or empty: export it"
                self._refuse(path, told)
            return value or None
        if kind == "airflow":
            return self._look_up_connection(name, path)
        file = self._base_dir / name
        try:
            raw = file.read_bytes() if file.is_file() else None
        except OSError as error:
            self._refuse(path, f"the file {file} cannot be read: {error.strerror}")
            return None
        if raw is None:
            self._refuse(path, f"there is no file {file}")
            return None
        try:
            text = raw.decode().rstrip("\r\n") if len(raw) <= _MAX_SECRET_BYTES else ""
        except UnicodeDecodeError:
            text = ""
        if not text:
            self._refuse(path, f"the file {file} is empty, larger than 64 KB or not UTF-8 text")
        return text or None

    def _look_up_connection(self, name: str, path: KeyPath) -> str | None:
        if self._find_connection is None:
            self._refuse(
                path,
                f"the connection {name} is known to Airflow only: a file that is used in the shell "
                "too takes ${env:NAME} or ${file:PATH}",
            )
            return None
        try:
            value = self._find_connection(name)
        except LookupError as error:
            self._refuse(path, str(error.args[0]))
            return None
        if not value:
            self._refuse(path, f"the connection's field {name} is empty")
        return value or None

    def _take_connection(self, own: dict[Any, Any], path: KeyPath) -> dict[Any, Any]:
        """What the connection of a `conn_id` says, beneath the section's own keys."""
        read = _find_reader(path)
        if read is None or "conn_id" not in own:
            return own
        at, name = (*path, "conn_id"), str(own.pop("conn_id"))
        field = "url" if path[0] == "sources" else "extra"
        found = self._look_up_connection(f"{name}.{field}", at)
        if found is None:
            return own
        given = read(found)
        for key, value in given.items():
            self.values.add(value)
            if is_secret((*path, key)):
                self.secrets.add(value)
        return given | own

    def _refuse(self, path: KeyPath, text: str) -> str:
        self.problems.append(Problem(path, text))
        return ""


def _find_reader(path: KeyPath) -> Callable[[str], dict[str, str]] | None:
    """What a section takes from a connection; None: such a section takes none."""
    match path:
        case ("clusters", _):
            return _read_properties
        case ("sources", _):
            return lambda url: {"url": url}
        case ("streams", _, "consumers", "kubernetes"):
            return _read_kubernetes
    return None


def _read_properties(extra: str) -> dict[str, str]:
    """Of a connection's extra, without what its other readers say of themselves (`group.id`)."""
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in _read_extra(extra).items()
        if key not in OWN_PROPERTIES
    }


def _read_kubernetes(extra: str) -> dict[str, str]:
    """Without a kubeconfig in it the pod's own service account is used, or the worker's file."""
    found = _read_extra(extra)
    given = {}
    for name, key in _KUBERNETES.items():
        # Older versions of the provider wrote the longer names.
        value = found.get(name) or found.get(f"extra__kubernetes__{name}")
        if value:
            given[key] = value if isinstance(value, str) else json.dumps(value)
    return given


def _read_extra(extra: str) -> Mapping[str, Any]:
    try:
        found = json.loads(extra)
    except ValueError:
        return {}
    return found if isinstance(found, Mapping) else {}


def _reason_against_references(path: KeyPath) -> str:
    match path:
        case ("spark", "conf", *_):
            return "Spark shows its settings in its pages and logs, so a reference is not taken"
        case ("streams", _, "source", "message", "headers", *_) | (
            "streams",
            _,
            "source",
            *_,
            "sql",
        ):
            return "SQL goes into the plan as it is, so a reference is not taken"
        case ("streams", _, "consumers", "command" | "scale" | "stop" | "status", *_):
            return (
                "arguments are seen by everybody on the machine, so a reference is not taken: give "
                "a secret by `environment`"
            )
    return ""


def _holds_literal_secret(holed: str, path: KeyPath) -> bool:
    if "PRIVATE KEY-----" in holed:
        return True
    if not is_secret(path):
        found = _ANY_URL_PASSWORD.findall(holed)
    elif (
        path[0] == "clusters"
        or (path[0] == "streams" and _SECRET_VARIABLE.search(path[-1]))
        # Only a webhook's URL may be no secret.
        or (path[0] == "watch" and path[-1] != "webhook")
    ):
        found = [holed]
    else:
        match = _URL_PASSWORD.match(holed)
        found = [*([match.group(1)] if match else []), *_QUERY_SECRET.findall(holed)]
    return any(part.strip(_HOLE) for part in found)


def find_url_secrets(url: str) -> set[str]:
    """The password and secret parameters of a database URL, and the URL that holds them."""
    match = _URL_PASSWORD.match(url)
    found = {
        part for part in (match.group(1) if match else "", *_QUERY_SECRET.findall(url)) if part
    }
    return found | {url} if found else found


def find_url_names(url: str) -> set[str]:
    """Host, port and database of a URL: people may see them, even when they came by reference."""
    try:
        parts = urlsplit(url)
        names = {parts.hostname or "", str(parts.port or ""), parts.path.lstrip("/")}
    except ValueError:
        return set()
    return names - {""}


def mask(text: str, secrets: Iterable[str]) -> str:
    """The text with `***` for each secret, also where it is percent-encoded, quoted or escaped."""
    forms: set[str] = set()
    for secret in secrets:
        forms |= {secret, unquote(secret), quote(secret), quote(secret, safe="")}
    for form in tuple(forms):
        forms |= {repr(form)[1:-1], json.dumps(form)[1:-1]}
    forms = {form for form in forms if form.strip()}
    if not forms:
        return text
    longest_first = sorted(forms, key=lambda form: (-len(form), form))
    return re.sub("|".join(map(re.escape, longest_first)), "***", text)
