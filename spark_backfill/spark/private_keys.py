"""Which private keys Kafka's Java client reads: PKCS#8 in PEM, of the kinds that it knows.

What it does with others was tried with kafka-clients 3.9 and 4.3 on Java 17 and 25: it fails with
"Private key could not be loaded" when Spark reads first.
"""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path

from backlog.errors import ConfigurationError
from backlog.jars import find_java_version
from backlogctl_delivery.visible import quote_word

_PEM = re.compile(r"-----BEGIN ((?:[A-Z0-9]+ )*PRIVATE KEY)-----(.*?)-----END \1-----", re.DOTALL)
_OLD_FORMS = {
    "RSA PRIVATE KEY": "a PKCS#1 key",
    "EC PRIVATE KEY": "a SEC1 key",
    "DSA PRIVATE KEY": "an OpenSSL DSA key",
}
_READ, _ENCRYPTED = "PRIVATE KEY", "ENCRYPTED PRIVATE KEY"
# Object identifiers as they stand in DER, behind their tag and length.
_KINDS = tuple(
    bytes.fromhex(code)
    for code in (
        "06092a864886f70d010101",  # rsaEncryption
        "06072a8648ce3d0201",  # id-ecPublicKey
        "06072a8648ce380401",  # id-dsa
    )
)
_PBES2 = bytes.fromhex("06092a864886f70d01050d")
_SHA1_3DES = bytes.fromhex("060a2a864886f70d010c0103")
# Java 17 looks for a cipher of that name; Java 25 knows better, and those between were not tried.
_WITHOUT_PBES2 = 17
_HEAD_BYTES = 40


def is_encrypted(pem: str) -> bool:
    """Whether it takes a password to read it."""
    found = _PEM.search(pem)
    return found is not None and (found[1] == _ENCRYPTED or "ENCRYPTED" in found[2])


def check_key(pem: str, path: str, *, has_password: bool) -> None:
    """Refuses a key that Kafka's Java client does not read.

    Args:
        path: its file; "" where it is `ssl.key.pem`.

    Raises:
        ConfigurationError: with the command that makes one that it reads.
    """
    found = _PEM.search(pem)
    if found is None:
        raise ConfigurationError(
            "there is no private key in PEM in it",
            subject=path or "ssl.key.pem",
            hint="a key begins with `-----BEGIN PRIVATE KEY-----`",
        )
    name, body = found[1], found[2]
    if why := _say_why_not(name, body, has_password=has_password):
        raise ConfigurationError(
            f"it is {why}, which Kafka's Java client does not read; Spark reads Kafka with it",
            subject=path or "ssl.key.pem",
            hint=_make_hint(path, is_known=not why.startswith(_OTHER_KIND)),
        )


_OTHER_KIND = "a key of another kind than RSA, EC or DSA"


def _say_why_not(name: str, body: str, *, has_password: bool) -> str:
    told = f"(`BEGIN {name}`)"
    if name == _READ:
        head = _decode(body)
        is_known = head is None or any(kind in head for kind in _KINDS)
        return "" if is_known else f"{_OTHER_KIND} {told}"
    if name != _ENCRYPTED:
        return f"{_OLD_FORMS.get(name, 'no PKCS#8 key')} {told}"
    if not has_password:
        return f"encrypted {told}, and without `ssl.key.password`"
    head = _decode(body) or b""
    if _SHA1_3DES in head:
        return ""
    if _PBES2 in head and (version := find_java_version()) <= _WITHOUT_PBES2:
        return f"encrypted with PBES2 {told}, on Java {version}"
    return ""


def _decode(body: str) -> bytes | None:
    """The first bytes, which name the algorithm; None where it is no base64."""
    try:
        return base64.b64decode("".join(body.split()), validate=True)[:_HEAD_BYTES]
    except binascii.Error:
        return None


def _make_hint(path: str, *, is_known: bool) -> str:
    if not is_known:
        return "take an RSA or an EC key"
    source = Path(path) if path else Path("KEY.pem")
    target = source.with_name(f"{source.stem}.pkcs8.pem")
    words = f"-in {quote_word(str(source))} -out {quote_word(str(target))}"
    return (
        f"`openssl pkcs8 -topk8 -nocrypt {words}` makes one that every client reads, without a "
        "password: nobody else may read the file. Name it in `ssl.key.location`"
    )
