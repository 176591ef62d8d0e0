"""A client's configuration file as its client reads it: which clients it sets up, and how.

A file is Spring's, Kafka Streams', a Connect worker's or connector's, or a plain client's: of
Java, or of librdkafka (Python, C#, Go, Node). Each profile of a file of Spring is judged alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from backlogctl.errors import UsageError
from backlogctl.monitoring.doctor.checks import CheckLevel, CheckScope
from backlogctl.monitoring.doctor.client_formats import Document, read_documents
from backlogctl.monitoring.doctor.client_settings import (
    ClientKind,
    find_near,
    list_aliases,
    list_settings,
    list_unknown,
    squash,
)
from backlogctl.monitoring.doctor.client_spring import (
    SPRING,
    Name,
    Property,
    Setting,
    SpringFile,
    SpringSettings,
    list_imports,
    list_spring_fields,
    parse_name,
    resolve,
)

_ROLES = {"producer": CheckScope.PRODUCER, "consumer": CheckScope.CONSUMER}
_LETTERS = {CheckScope.PRODUCER: 0, CheckScope.CONSUMER: 1}
# Values that are put in when it is deployed: by a shell, Helm, Maven, or a person.
_TEMPLATE = re.compile(
    r"\$\{|\$\(|\{\{|^\$[A-Za-z_]\w*$|^@[^@\s]+@$|^<[^<>]+>$|^%\w+%$|^__\w+__$|^#\{|<%"
)
_SHELL_DEFAULT = re.compile(r"\$\{(\w+):?-([^${}]*)\}")
_BROKER = frozenset(["broker.id", "log.dirs", "log.dir", "process.roles", "node.id"])
_WORKER = frozenset(
    ["config.storage.topic", "offset.storage.topic", "offset.storage.file.filename"]
)
_PREFIXED = re.compile(
    r"(producer|consumer|admin|listeners|rest\.extension|config\.providers|metrics|log4j|"
    r"(internal\.)?(key|value|header)\.converter)\."
)
# What a client sets itself where the file says nothing: `by` says who.
_DEFAULTS: dict[str, dict[str, dict[str, str]]] = {
    "Spring": {
        "producer": {},
        # Its container commits unless the client is told to (Spring Kafka 2.3 and later).
        # KafkaProperties always sets the isolation, over the one that is common to all clients.
        "consumer": {"enable.auto.commit": "false", "isolation.level": "read_uncommitted"},
    },
    "Streams": {
        "producer": {"linger.ms": "100"},
        "consumer": {"auto.offset.reset": "earliest", "max.poll.records": "1000"},
    },
    "Connect": {
        "producer": {
            "enable.idempotence": "false",
            "acks": "all",
            "max.in.flight.requests.per.connection": "1",
            "delivery.timeout.ms": "2147483647",
            "max.block.ms": "9223372036854775807",
        },
        "consumer": {"enable.auto.commit": "false", "auto.offset.reset": "earliest"},
    },
}
_OTHERS = (".bootstrap.servers", "zookeeper.connect")
_EITHER = "its settings are common to producers and consumers, and the code adds others"
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ClientNote:
    """What the file itself shows, besides its clients' settings."""

    level: CheckLevel
    found: str
    mend: str


@dataclass(frozen=True, slots=True)
class FileClient:
    """A producer or consumer; `defaults` are those of `by`, before the client's own."""

    title: str
    scope: CheckScope
    kind: ClientKind
    given: Mapping[str, Setting]
    by: str = ""
    defaults: Mapping[str, str] = field(default_factory=dict)

    @property
    def letter(self) -> str:
        """Its column in the table of settings."""
        return self.kind[_LETTERS[self.scope]]


@dataclass(frozen=True, slots=True)
class ClientProfile:
    """The clients of a file, or of one profile of it.

    Attributes:
        name: of the profile; empty for the base.
        partial: why what is left out may stand elsewhere; empty where its default is in force.
        alternatives: the same clients of librdkafka, where nothing tells whose file it is.
    """

    path: Path
    name: str
    clients: tuple[FileClient, ...]
    notes: tuple[ClientNote, ...] = ()
    partial: str = ""
    alternatives: tuple[FileClient, ...] = ()


def read_client_file(path: Path) -> list[ClientProfile]:
    """Reads a file: its profiles, the base first.
    Raises UsageError: there is no such file, or it holds no client's settings.
    """
    documents = read_documents(path)
    names, partial = [name for document in documents for name in document], ""
    if all(re.fullmatch(r"[A-Z][A-Z0-9_]*", name) for name in names):
        documents = [_read_environment(one) for one in documents]
        names = [name for document in documents for name in document]
        partial = "an environment lies over the application's own file"
    spring = [name for name in names if parse_name(name)[:1] == SPRING[:1]]
    if any(parse_name(name)[:2] == SPRING for name in spring):
        return _read_spring(path, documents, partial)
    plain: Document = {}
    for document in documents:
        plain |= document
    if "config.connector.class" in plain:  # as Connect's REST interface takes it
        plain = {name.removeprefix("config."): one for name, one in plain.items()}
    if not spring and not plain.keys() & _BROKER and (profile := _read_plain(path, plain)):
        return [profile]
    outside = [
        name
        for document in documents
        for name, value in document.items()
        if _looks_like_setting(parse_name(name)) or "SPRING_KAFKA_" in name + value
    ]
    if outside and not plain.keys() & _BROKER:
        return [ClientProfile(path, "", (), (_note_outside(outside),))]
    raise UsageError(
        "holds no setting of a Kafka client",
        subject=f"client file {path}",
        hint="name a file of Java properties, of librdkafka (name=value), or of Spring",
    )


def _read_environment(variables: Document) -> Document:
    """Variables by the names they stand for, of Spring and of Connect's images."""
    found = {}
    for variable, value in variables.items():
        name = variable.lower().replace("_", ".")
        given = _SHELL_DEFAULT.fullmatch(value)
        text = f"${{{given[1]}:{given[2]}}}" if given else value
        if variable.startswith("CONNECT_"):
            name = name.removeprefix("connect.")
        elif match := re.match(r"spring\.kafka\.(?:(producer|consumer|streams)\.)?(.*)", name):
            part, below = match[1], match[2]
            own = below if below.startswith("properties.") else below.replace(".", "-")
            name = ".".join(filter(None, [*SPRING, part, own]))
        found[name] = text
    return found


# Spring.


def _read_spring(path: Path, documents: Sequence[Document], partial: str) -> list[ClientProfile]:
    """Each profile that has settings of its own; the file of one lies over the one beside it."""
    file, base = SpringFile(documents), None
    profiles = list(file.list_profiles())
    if own := re.fullmatch(r"(application|bootstrap)-([\w.\-]+)", path.stem):
        names = (f"{own[1]}{suffix}" for suffix in (path.suffix, ".yml", ".yaml", ".properties"))
        base = next((name for name in names if path.with_name(name).is_file()), None)
        if base:
            file = SpringFile([*read_documents(path.with_name(base)), *documents])
        profiles = [(f"profile {own[2]}" + (f", on {base}" * bool(base)), file.widen([own[2]]))]
    found: dict[str, tuple[list[str], ClientProfile]] = {}
    for label, active in profiles:
        merged = file.merge(active)
        kafka = sorted(
            (name, resolve(one.value, merged, set()))
            for name, one in merged.items()
            if name[:2] == SPRING
        )
        if own and not base:
            partial = f"it lies over another file, {own[1]}{path.suffix}"
        if imports := list_imports(merged):
            partial = f"more is imported from {', '.join(imports)}"
        if kafka:
            profile = _make_spring_profile(path, merged, partial)
            found.setdefault(repr(kafka), ([], profile))[0].append(label or "base")
    return [
        replace(one, name="" if labels == ["base"] else " and ".join(labels))
        for labels, one in found.values()
    ]


def _make_spring_profile(
    path: Path, merged: Mapping[Name, Property], partial: str
) -> ClientProfile:
    settings = SpringSettings(merged)
    common = settings.parts.get("", {})
    streams = settings.parts.get("streams")
    present = [role for role in _ROLES if role in settings.parts]
    listens = any(name[:3] == (*SPRING, "listener") for name in merged)
    if listens and "consumer" not in present:
        present.append("consumer")
    if not present and streams is None:
        present, partial = list(_ROLES), partial or _EITHER
    clients, hidden = [], None
    for role in present:
        given = {**common, **settings.parts.get(role, {})}
        if role == "consumer" and "isolation.level" not in settings.parts.get(role, {}):
            hidden = given.pop("isolation.level", None)
        if role == "producer" and "transactional.id" in given:  # DefaultKafkaProducerFactory
            always = Setting("true", "", "as Spring sets it for transactions")
            given.setdefault("enable.idempotence", always)
        defaults = _DEFAULTS["Spring"][role]
        clients.append(FileClient(role, _ROLES[role], ClientKind.JAVA, given, "Spring", defaults))
    if streams is not None:
        clients += _make_streams({**common, **streams})
    outside = [
        one.written
        for name, one in merged.items()
        if name not in settings.used and name[:2] != SPRING and _looks_like_setting(name)
    ]
    notes = [_note_ignored(*one) for one in settings.ignored]
    if hidden:
        told = "isolation.level of the common properties is not in force: Spring sets it for each "
        told += "consumer"
        mend = "write it as spring.kafka.consumer.isolation-level"
        notes.append(ClientNote(CheckLevel.WARNS, told, mend))
    known = {"": "PC", "producer": "P", "consumer": "C", "streams": "PCS"}
    for part, given in settings.parts.items():
        letters = known[part] + ("S" if part == "" and streams is not None else "")
        names = given if part != "streams" else [_strip_streams(name) for name in given]
        notes += _note_unknown(names, letters, "Java's client ignores it")
    if outside:
        notes.append(_note_outside(outside))
    return ClientProfile(path, "", tuple(clients), tuple(notes), partial)


def _note_ignored(part: str, written: str, below: str) -> ClientNote:
    letters = {"producer": "P", "consumer": "C", "streams": "PCS"}.get(part, "PC")
    mend = "only code of the application can read it; remove it if none does"
    if near := find_near(below, list_spring_fields(part)):
        mend = f"write it as {'.'.join(filter(None, [*SPRING, part, near]))}"
    elif near := find_near(below, list_settings(letters)):
        mend = f"write it as {'.'.join(filter(None, [*SPRING, part, 'properties', near]))}"
    return ClientNote(
        CheckLevel.WARNS, f"{written} is no property of Spring Boot, which ignores it", mend
    )


def _looks_like_setting(name: Name) -> bool:
    """Whether a name ends like a setting of a client, at a place that tells of Kafka."""
    if not any(word in element for element in name[:-1] for word in _PLACES):
        return False
    known = {squash(one) for one in list_settings("PCpc")} - {"debug", "opaque", "interceptors"}
    return any("".join(name[at:]) in known for at in range(1, len(name)))


_PLACES = ("kafka", "producer", "consumer", "incoming", "outgoing")


def _list_some(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _note_outside(names: Sequence[str]) -> ClientNote:
    return ClientNote(
        CheckLevel.UNKNOWN,
        f"{_list_some(names)}: named like settings of Kafka's clients, but which client gets them, "
        "and what is added to them, is up to the application or its framework",
        "log the settings that the client starts with, and give them as a file of properties",
    )


# Streams, Connect, and plain clients.


def _read_plain(path: Path, plain: Document) -> ClientProfile | None:
    """None where it holds no setting of a client."""
    # Python's client takes a topic's settings there.
    given = {
        name.removeprefix("default.topic.config."): Setting(
            None if _TEMPLATE.search(value) else value, value
        )
        for name, value in plain.items()
    }
    # Of MirrorMaker, and of the consumer that kept its offsets in ZooKeeper.
    if others := [name for name in given if name.endswith(_OTHERS)]:
        return ClientProfile(path, "", (), (_note_outside(others),))
    if not given.keys() & list_settings("PCSWKpc").keys():
        prefixed = any(name.startswith(tuple(f"{role}." for role in _ROLES)) for name in given)
        mistyped = sum(near is not None for _, near in list_unknown(given, "PCpc"))
        if 2 * mistyped < max(1, len(given)) and not (
            prefixed and any(_looks_like_setting(parse_name(name)) for name in given)
        ):
            return None
    clients = given.keys() & list_settings("PCSWpc").keys()
    if "connector.class" in given or (given.keys() & list_settings("K").keys() and not clients):
        return _make_connector(path, given)
    if given.keys() & _WORKER:
        return _make_worker(path, given)
    if "application.id" in given or given.keys() & _list_streams_names():
        names = [_strip_streams(name) for name in given]
        notes = tuple(_note_unknown(names, "PCS", "Kafka Streams ignores it"))
        return ClientProfile(path, "", tuple(_make_streams(given)), notes)
    return _make_plain(path, given)


def _list_streams_names() -> set[str]:
    """Names that only Streams has; what is made of topics sets their replication too."""
    return list_settings("S").keys() - list_settings("PCWKpc").keys() - {"replication.factor"}


def _strip_streams(name: str) -> str:
    return re.sub(r"^((main|restore|global)\.)?(consumer|producer|admin|topic)\.", "", name)


def _make_streams(given: Mapping[str, Setting]) -> Iterator[FileClient]:
    """Streams takes a client's settings with its prefix and without (StreamsConfig)."""
    exactly_once = given.get("processing.guarantee", Setting("", "")).value
    by = "Streams"
    for role, prefixes in (
        ("producer", ["producer."]),
        ("consumer", ["consumer.", "main.consumer."]),
    ):
        own = dict(given)
        for prefix in prefixes:
            own |= _take(given, prefix)
        forced = {"enable.auto.commit": "false"} if role == "consumer" else {}
        if str(exactly_once).startswith("exactly_once"):
            forced |= {"isolation.level": "read_committed", "enable.idempotence": "true"}
        own |= {name: Setting(value, "", "as Streams sets it") for name, value in forced.items()}
        title = f"{role} of Streams"
        yield FileClient(title, _ROLES[role], ClientKind.JAVA, own, by, _DEFAULTS[by][role])


def _make_worker(path: Path, given: Mapping[str, Setting]) -> ClientProfile:
    """A worker's clients get what has their prefix; what is theirs without it, nobody gets."""
    does, notes = "Connect ignores it", []
    known = {letter: list_settings(letter).keys() for letter in "PCWK"}
    plain = [name for name in given if not _PREFIXED.match(name)]
    for role, scope in _ROLES.items():
        letter = ClientKind.JAVA[_LETTERS[scope]]
        others = "".join(set("PCWK") - {letter})
        own = known[letter] - set().union(*(known[one] for one in others))
        for name in filter(own.__contains__, plain):
            told = f"{name} is no setting of the worker: Connect's clients do not get it"
            notes.append(ClientNote(CheckLevel.WARNS, told, f"write it as {role}.{name}"))
        notes += _note_unknown(_take(given, f"{role}."), letter, does)
    notes += _note_unknown(plain, "PCWK", does)
    clients = tuple(_make_connect_clients(given, "", list(_ROLES)))
    return ClientProfile(path, "", clients, tuple(notes))


def _make_connector(path: Path, given: Mapping[str, Setting]) -> ClientProfile:
    """A connector's file: what else it has is the connector's own."""
    infix = ".override"
    roles = [role for role in _ROLES if _take(given, f"{role}{infix}.")]
    note = ClientNote(
        CheckLevel.UNKNOWN,
        "it is a connector's, and sets no producer or consumer of its own: what they are given "
        "stands in the worker's file",
        "give the worker's file",
    )
    clients = tuple(_make_connect_clients(given, infix, roles))
    partial = "the worker's file has what it leaves out"
    return ClientProfile(path, "", clients, () if clients else (note,), partial)


def _make_connect_clients(
    given: Mapping[str, Setting], infix: str, roles: Iterable[str]
) -> Iterator[FileClient]:
    by = "Connect"
    for role in roles:
        own = _take(given, f"{role}{infix}.")
        title = f"{role} of Connect"
        yield FileClient(title, _ROLES[role], ClientKind.JAVA, own, by, _DEFAULTS[by][role])


def _take(given: Mapping[str, Setting], prefix: str) -> dict[str, Setting]:
    return {
        name.removeprefix(prefix): one for name, one in given.items() if name.startswith(prefix)
    }


def _make_plain(path: Path, given: Mapping[str, Setting]) -> ClientProfile:
    """Of the client that takes most of the file: of Java where both take the same."""
    misfits = {kind: _count_misfits(given, kind) for kind in ClientKind}
    kind = min(misfits, key=lambda one: misfits[one])
    undecided = misfits[ClientKind.JAVA] == misfits[ClientKind.LIBRDKAFKA]
    clients = tuple(_make_clients(given, kind))
    others = tuple(_make_clients(given, ClientKind.LIBRDKAFKA)) if undecided else ()
    names = [re.sub(r"^(producer|consumer)\.", "", name) for name in given]
    does = "Java's client ignores it" if kind is ClientKind.JAVA else "librdkafka refuses it"
    level = CheckLevel.WARNS if kind is ClientKind.JAVA or undecided else CheckLevel.STOPS
    partial = "" if _tell_roles(given, kind) else _EITHER
    return ClientProfile(
        path, "", clients, tuple(_note_unknown(names, kind, does, level)), partial, others
    )


def _count_misfits(given: Mapping[str, Setting], kind: ClientKind) -> int:
    """Names that this client does not know, and words that it does not take as a value."""
    known, count = list_settings(kind), 0
    for name, one in given.items():
        setting = known.get(re.sub(r"^(producer|consumer)\.", "", name))
        if setting is None:
            count += 1
        elif "|" in setting.allowed and one.value is not None:
            count += setting.refuse(one.value.lower()) is not None
    return count


def _tell_roles(given: Mapping[str, Setting], kind: ClientKind) -> list[str]:
    """The roles that a file has settings of; none where all are common to both."""
    known = [list_settings(letter).keys() for letter in kind]
    found = []
    for role, scope in _ROLES.items():
        own, other = known[_LETTERS[scope]], known[1 - _LETTERS[scope]]
        prefixed = any(name.startswith(f"{role}.") for name in given)
        if prefixed or given.keys() & (own - other):
            found.append(role)
    return found


def _make_clients(given: Mapping[str, Setting], kind: ClientKind) -> Iterator[FileClient]:
    aliases = list_aliases() if kind is ClientKind.LIBRDKAFKA else {}
    for role in _tell_roles(given, kind) or _ROLES:
        settings = {**given, **_take(given, f"{role}.")}
        own = {aliases.get(name, name): one for name, one in settings.items()}
        yield FileClient(role, _ROLES[role], kind, own)


def _note_unknown(
    names: Iterable[str], clients: str, does: str, level: CheckLevel = CheckLevel.WARNS
) -> Iterator[ClientNote]:
    """A typing mistake has a note of its own; what is like nothing may be the application's."""
    others = []
    for name, near in list_unknown(names, clients):
        if near:
            told = f"{name} is no setting: {does}; {near} is one"
            yield ClientNote(level, told, f"write it as {near}")
        else:
            others.append(name)
    if others:
        told = f"{_list_some(others)}: no setting of Kafka's, so {does}"
        told += " unless the application takes it out" * (level is CheckLevel.STOPS)
        mend = "it may be read by the application or a plug-in; else remove it"
        yield ClientNote(max(level, CheckLevel.UNKNOWN, key=list(CheckLevel).index), told, mend)
