"""A file of Spring Boot as Spring reads it: documents by profile, relaxed names, placeholders.

Sources: Spring Boot's ConfigurationPropertyName, KafkaProperties, DurationStyle and
PropertySourcesPlaceholdersResolver; Spring's ProfilesParser; DefaultKafkaProducerFactory and
KafkaMessageListenerContainer of Spring Kafka.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from backlogctl.monitoring.doctor.client_formats import Document
from backlogctl.monitoring.doctor.client_settings import squash

Name = tuple[str, ...]
SPRING: Name = ("spring", "kafka")
_ELEMENT = re.compile(r"\[([^\]]*)\]|([^.\[\]]+)")
_CONDITIONS = (("spring", "config", "activate", "onprofile"), ("spring", "profiles"))
_PLATFORM = ("spring", "config", "activate", "oncloudplatform")
_IMPORT = ("spring", "config", "import")
_DURATION = {"ns": 1e-6, "us": 1e-3, "ms": 1, "s": 1e3, "m": 6e4, "h": 3.6e6, "d": 8.64e7, "": 1}
_SIZE = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
# Fields of KafkaProperties by part of `spring.kafka`; "" is what all clients have.
_FIELDS = {
    "": "bootstrap-servers client-id",
    "producer": "bootstrap-servers client-id acks batch-size buffer-memory compression-type "
    "key-serializer retries transaction-id-prefix value-serializer",
    "consumer": "bootstrap-servers client-id auto-commit-interval auto-offset-reset "
    "enable-auto-commit fetch-max-wait fetch-min-size group-id heartbeat-interval "
    "isolation-level key-deserializer max-poll-interval max-poll-records value-deserializer",
    "streams": "application-id bootstrap-servers client-id replication-factor state-dir "
    "state-store-cache-max-size",
}
_TEXTS = ["acks", "auto-offset-reset", "client-id", "compression-type", "group-id"]
# What is no setting of a client, by part.
_OTHERS = {
    "": "ssl security admin listener jaas template retry",
    "producer": "ssl security",
    "consumer": "ssl security",
    "streams": "ssl security auto-startup cleanup leave-group-on-close",
}
_KAFKA_NAMES = {
    "auto-commit-interval": "auto.commit.interval.ms",
    "fetch-max-wait": "fetch.max.wait.ms",
    "fetch-min-size": "fetch.min.bytes",
    "heartbeat-interval": "heartbeat.interval.ms",
    "max-poll-interval": "max.poll.interval.ms",
    "state-store-cache-max-size": "statestore.cache.max.bytes",
    "transaction-id-prefix": "transactional.id",
}


def list_spring_fields(part: str) -> list[str]:
    """What may stand below `spring.kafka`, or below a part of it."""
    return f"{_FIELDS[part]} {_OTHERS[part]}".split()


class Property(NamedTuple):
    """A value in force: `written` is its name in the file."""

    written: str
    value: str


class Setting(NamedTuple):
    """A client's setting.

    Attributes:
        value: None where it is known only where the client runs.
        text: as the file has it.
        origin: said with the value; empty where the value simply stands there.
    """

    value: str | None
    text: str
    origin: str = ""


def parse_name(written: str) -> Name:
    """A name's elements in Spring's uniform form; what stands in brackets stays as it is."""
    return tuple(bracket or squash(plain) for bracket, plain in _ELEMENT.findall(written))


def is_active(expression: str, profiles: frozenset[str]) -> bool:
    """Whether a document counts: names with `!`, `&`, `|` and parentheses; a comma is an or."""
    words = re.findall(r"[()!&|,]|[^()!&|,\s]+", expression)

    def read_any() -> bool:
        found = read_all()
        while words and words[0] in "|,":
            words.pop(0)
            found = read_all() or found
        return found

    def read_all() -> bool:
        found = read_one()
        while words and words[0] == "&":
            words.pop(0)
            found = read_one() and found
        return found

    def read_one() -> bool:
        word = words.pop(0) if words else ""
        if word == "!":
            return not read_one()
        if word == "(":
            found = read_any()
            if words:
                words.pop(0)
            return found
        return word in profiles

    return read_any()


class SpringFile:
    """The documents of one file, and which settings are in force with which profiles."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self.documents = [
            {parse_name(name): Property(name, value) for name, value in document.items()}
            for document in documents
        ]

    def list_profiles(self) -> Iterator[tuple[str, frozenset[str]]]:
        """The sets of profiles to look at, each with its label: none, each, and those joined."""
        started = self._list(("spring", "profiles", "active"))
        label = f"profile {', '.join(started)}, as it starts" if started else ""
        yield label, self.widen(started or ["default"])
        named: dict[frozenset[str], None] = {}
        for condition in filter(None, map(_read_condition, self.documents)):
            names = re.findall(r"[^()!&|,\s]+", condition)
            named |= {frozenset([name]): None for name in names}
            if "&" in condition:
                named[frozenset(re.findall(r"(?<![!\w])[^()!&|,\s]+", condition))] = None
        for profiles in named:
            if not profiles <= self.widen(started or ["default"]):
                yield "profile " + " & ".join(sorted(profiles)), self.widen(profiles)

    def merge(self, profiles: frozenset[str]) -> dict[Name, Property]:
        """What is in force: a later document lies over those before it."""
        merged: dict[Name, Property] = {}
        for document in self.documents:
            condition = _read_condition(document)
            if not condition or is_active(condition, profiles):
                merged |= document
        return merged

    def _list(self, name: Name) -> list[str]:
        for document in self.documents:
            if not _read_condition(document) and name in document:
                found = resolve(document[name].value, document, set())
                return [one.strip() for one in (found.value or "").split(",") if one.strip()]
        return []

    def widen(self, profiles: Iterable[str]) -> frozenset[str]:
        """With those that are always included, and the members of groups."""
        found = {*profiles, *self._list(("spring", "profiles", "include"))}
        for one in list(found):
            found |= set(self._list(("spring", "profiles", "group", squash(one))))
        return frozenset(found)


def list_imports(merged: Mapping[Name, Property]) -> list[str]:
    """Other files and servers that lie over this file."""
    return [one.value for name, one in merged.items() if name[:3] == _IMPORT]


def _read_condition(document: Mapping[Name, Property]) -> str:
    found = [document[name].value for name in _CONDITIONS if name in document]
    if _PLATFORM in document:
        found.append(f"cloud-platform-{document[_PLATFORM].value}")
    return " & ".join(f"({one})" for one in found)


def resolve(text: str, merged: Mapping[Name, Property], used: set[Name], depth: int = 9) -> Setting:
    """A value with its placeholders put in: from the file itself, else their default."""
    value, origins, position = "", [], 0
    while (start := text.find("${", position)) >= 0:
        value += text[position:start]
        end = _find_end(text, start + 2)
        if end < 0 or depth == 0:
            return Setting(None, text)
        name, colon, default = text[start + 2 : end].partition(":")
        own = parse_name(name)
        if own in merged:
            used.add(own)
            part = resolve(merged[own].value, merged, used, depth - 1)
        else:
            part = resolve(default, merged, used, depth - 1) if colon else Setting(None, text)
            origins.append(f"the default of ${{{name}}}")
        if part.value is None:
            return Setting(None, text)
        origins += [part.origin] if part.origin else []
        value, position = value + part.value, end + 1
    return Setting(value + text[position:], text, " and ".join(dict.fromkeys(origins)))


def _find_end(text: str, position: int) -> int:
    depth = 1
    for found in re.finditer(r"\$\{|\}", text[position:]):
        depth += 1 if found[0] == "${" else -1
        if depth == 0:
            return position + found.start()
    return -1


class SpringSettings:
    """What Spring binds below `spring.kafka`, by the part it stands in.

    Attributes:
        parts: settings by Kafka's names; "" are those common to all clients.
        ignored: what Spring binds to nothing: the part, the name, and what stands below the part.
        used: names of the file that placeholders took values from.
    """

    def __init__(self, merged: Mapping[Name, Property]) -> None:
        self.parts: dict[str, dict[str, Setting]] = {}
        self.ignored: list[tuple[str, str, str]] = []
        self.used: set[Name] = set()
        # What stands in `properties` lies over the fields.
        for name, one in sorted(merged.items(), key=lambda item: "properties" in item[0]):
            if name[:2] == SPRING and len(name) > len(SPRING):
                part = name[2] if name[2] in _FIELDS else ""
                below = _ELEMENT.findall(one.written)[3 if part else 2 :]
                if below:
                    self._bind(part, below, one.written, resolve(one.value, merged, self.used))

    def _bind(
        self, part: str, below: Sequence[tuple[str, str]], written: str, setting: Setting
    ) -> None:
        settings = self.parts.setdefault(part, {})
        first = squash("".join(below[0]))
        if first == "properties" and len(below) > 1:
            # A map's key: outside of brackets only letters, digits and `-` are kept.
            keys = [bracket or re.sub(r"[^\w\-]|_", "", plain) for bracket, plain in below[1:]]
            settings[".".join(keys)] = setting
            return
        for field in _FIELDS[part].split():
            if first == squash(field) and (len(below) == 1 or below[1][0].isdigit()):
                kafka = _KAFKA_NAMES.get(field, field.replace("-", "."))
                # An empty text is no number, no duration and no boolean: Spring leaves it out.
                if setting.value != "" or field in _TEXTS:
                    settings[kafka] = convert(setting, field)
                return
        if first not in map(squash, _OTHERS[part].split()):
            self.ignored.append((part, written, ".".join(one or two for one, two in below)))


def convert(setting: Setting, field: str) -> Setting:
    """A field's value as Spring hands it to Kafka; one that it cannot convert stays as it is."""
    if setting.value is None:
        return setting
    text = setting.value.strip()
    if field == "enable-auto-commit":
        words = {"on": "true", "yes": "true", "1": "true", "off": "false", "no": "false"}
        return setting._replace(value=words.get(text.lower(), text))
    if field == "isolation-level":
        levels = {squash(one): one for one in ("read_committed", "read_uncommitted")}
        return setting._replace(value=levels.get(squash(text), text))
    size = field.endswith(("-size", "-memory"))
    if not size and not field.endswith(("-interval", "-wait")):
        return setting
    if found := re.fullmatch(r"(\d+)\s*([a-zA-Z]*)", text):
        unit = found[2].upper() if size else found[2].lower()
        factor = (_SIZE if size else _DURATION).get(unit)
        return setting._replace(value=str(int(int(found[1]) * factor))) if factor else setting
    iso = re.fullmatch(r"PT(?:(\d+)H)?(?:(\d+)M)?(?:([\d.]+)S)?", text.upper())
    if iso and not size:
        hours, minutes, seconds = (float(one or 0) for one in iso.groups())
        return setting._replace(value=str(int(1000 * ((hours * 60 + minutes) * 60 + seconds))))
    return setting
