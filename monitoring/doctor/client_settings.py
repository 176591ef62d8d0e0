"""The settings that Kafka's clients know: names, types and values that they take.

client_settings.tsv beside this file has them, of Java's clients, Streams, Connect and librdkafka.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import NamedTuple

_TABLE = Path(__file__).with_suffix(".tsv")
# Read by serializers, interceptors and other plug-ins, which a client hands its settings to.
_PLUGINS = re.compile(
    r"schema\.registry\.|basic\.auth\.|bearer\.auth\.|spring\.|confluent\.|apicurio\.|json\.|"
    r"specific\.|avro\.|protobuf\.|aws\.|azure\.|auto\.register|use\.(latest|schema)|normalize\.|"
    r"(key|value)\.subject|latest\.|id\.compatibility|rule\.|metrics\.jmx|config\.providers\.|"
    r"(key|value)\.(serializer|deserializer)\.|interceptor\.|sasl\.jaas\.|go\.|dotnet\."
)
_INTEGERS = {"short": 15, "int": 31, "long": 63}
_CLOSE = 0.75
_LONG = 8


class ClientKind(StrEnum):
    """Whose settings they are: the letters of the table, the producer's and the consumer's."""

    JAVA = "PC"
    LIBRDKAFKA = "pc"


class ClientSetting(NamedTuple):
    """A line of the table."""

    name: str
    clients: str
    type: str = ""
    allowed: str = ""
    alias: str = ""

    def refuse(self, value: str) -> str | None:
        """Why its client does not take a value; None where it does."""
        value, lenient = value.strip(), self.clients.islower()
        if self.type in _INTEGERS:
            bits = 63 if lenient else _INTEGERS[self.type]
            if not re.fullmatch(r"[+-]?\d+", value) or not -(2**bits) <= int(value) < 2**bits:
                return "no whole number" if self.type != "int" else "no whole number of 32 bits"
        elif self.type == "double" and not re.fullmatch(r"[+-]?\d*\.?\d+", value):
            return "no number"
        elif self.type == "boolean":
            taken = ("true", "false", *(("t", "1", "f", "0") if lenient else ()))
            return None if value.lower() in taken else "neither true nor false"
        if found := re.fullmatch(r"(-?[\d.]+)\.\.(-?[\d.]+)?", self.allowed):
            low, high = float(found[1]), float(found[2] or "inf")
            return None if low <= float(value) <= high else f"not within {self.allowed}"
        if not self.allowed:
            return None
        if self.allowed == "?*":
            return None if value else "empty"
        if lenient or self.allowed.startswith("~"):
            value = value.lower()
        values = self.allowed.lstrip("~").split("|")
        taken_as = any(fnmatchcase(value, pattern) for pattern in values)
        return None if taken_as else f"none of {', '.join(values)}"


@cache
def list_settings(clients: str) -> dict[str, ClientSetting]:
    """The settings of any of these clients, given as letters of the table, by name."""
    lines = _TABLE.read_text(encoding="utf-8").splitlines()
    settings = (ClientSetting(*line.split("\t")) for line in lines if not line.startswith("#"))
    return {
        one.name: one._replace(clients="".join(asked))
        for one in settings
        if (asked := sorted(set(one.clients) & set(clients)))
    }


@cache
def list_aliases() -> dict[str, str]:
    """librdkafka's names by alias: those that Java's client has too come first."""
    java, found = list_settings(ClientKind.JAVA), {}
    for setting in list_settings(ClientKind.LIBRDKAFKA).values():
        if setting.alias:
            common = setting.name if setting.name in java else setting.alias
            found[setting.alias if common == setting.name else setting.name] = common
    return found


def squash(name: str) -> str:
    """A name without what separates its words: `auto-offset_reset` and `autoOffsetReset` alike."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def find_near(name: str, known: Iterable[str]) -> str | None:
    """The known name that somebody meant who wrote this one: two letters away, or its beginning."""
    text, squashed = squash(name), {squash(one): one for one in known}
    cutoff = max(_CLOSE, 1 - 2.01 / max(len(text), 1))
    near = difflib.get_close_matches(text, squashed, n=1, cutoff=cutoff)
    if not near and len(text) >= _LONG:
        near = [one for one in squashed if one.startswith(text)]
    return squashed[near[0]] if len(near) == 1 else None


def list_unknown(names: Iterable[str], clients: str) -> Iterator[tuple[str, str | None]]:
    """Names that none of the clients knows nor hands to a plug-in, and what may be meant."""
    known = list_settings(clients)
    for name in names:
        if name not in known and not _PLUGINS.match(name):
            yield name, find_near(name, known)
