"""Tokens of OAUTHBEARER logins for kafka-python: librdkafka and Java's client get their own.

By the grant of client credentials (RFC 6749, section 4.4), with the properties that librdkafka has
for it (KIP-768 has the same); or signed with AWS credentials (AWS_MSK_IAM).
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from abc import abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from kafka.net.sasl.oauth import AbstractTokenProvider

from backlogctl_delivery.kafka import (
    TOKEN_COMMAND,
    LoginRefused,
    read_extensions,
    read_life,
    run_token_command,
    sign_msk_token,
)

OIDC_NAMES = (
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.extensions",
    "https.ca.location",
)
_SECONDS = 10.0
# A token is fetched anew after this share of its life, as librdkafka does.
_SHARE = 0.8
_MOST_BYTES = 1024 * 1024


def uses_oidc(properties: Mapping[str, Any]) -> bool:
    """Whether these are the properties of OAUTHBEARER with client credentials."""
    method = str(properties.get("sasl.oauthbearer.method", "default")).lower()
    return method == "oidc" and all(properties.get(name) for name in OIDC_NAMES[:3])


def find_tokens(properties: Mapping[str, Any]) -> KeptTokens:
    """The tokens of this login, the same ones for all clients of a process."""
    names = (TOKEN_COMMAND, *OIDC_NAMES)
    return _keep_tokens(*(str(properties.get(name, "")) for name in names))


@lru_cache(maxsize=64)
def _keep_tokens(command: str, *settings: str) -> KeptTokens:
    known = dict(zip(OIDC_NAMES, settings, strict=True))
    return CommandTokens({TOKEN_COMMAND: command, **known}) if command else OidcTokens(*settings)


class KeptTokens(AbstractTokenProvider):  # type: ignore[misc]
    """Tokens of one login; thread-safe."""

    def __init__(self, extensions: str) -> None:
        super().__init__()
        self._extensions = extensions
        self._lock = threading.Lock()
        self._token, self._until = "", 0.0

    def token(self) -> str:
        """One that is good now.
        Raises LoginRefused: there is none.
        """
        with self._lock:
            if time.monotonic() >= self._until:
                began = time.monotonic()
                self._token, seconds = self._fetch()
                self._until = began + _SHARE * seconds
            return self._token

    def extensions(self) -> dict[str, str]:
        return read_extensions({"sasl.oauthbearer.extensions": self._extensions})

    @abstractmethod
    def _fetch(self) -> tuple[str, float]:
        """A token, and the seconds that it lives."""


class CommandTokens(KeptTokens):
    """Tokens that a command prints."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        super().__init__(str(properties.get("sasl.oauthbearer.extensions", "")))
        self._properties = properties

    def _fetch(self) -> tuple[str, float]:
        token, expires = run_token_command(self._properties)
        return token, expires - time.time()


class OidcTokens(KeptTokens):
    """Tokens of a token endpoint."""

    def __init__(
        self, url: str, client: str, secret: str, scope: str, extensions: str, ca: str
    ) -> None:
        super().__init__(extensions)
        self._url, self._client, self._secret = url, client, secret
        self._scope, self._ca = scope, ca

    def _fetch(self) -> tuple[str, float]:
        form = {"grant_type": "client_credentials"} | (
            {"scope": self._scope} if self._scope else {}
        )
        login = base64.b64encode(f"{self._client}:{self._secret}".encode()).decode()
        headers = {"Authorization": f"Basic {login}", "Accept": "application/json"}
        body = urllib.parse.urlencode(form).encode()
        # The configuration takes http and https only.
        request = urllib.request.Request(self._url, body, headers)  # noqa: S310
        context = ssl.create_default_context(cafile=self._ca) if self._ca else None
        try:
            with urllib.request.urlopen(  # noqa: S310
                request, timeout=_SECONDS, context=context
            ) as answer:
                found = json.loads(answer.read(_MOST_BYTES))
            token = str(found["access_token"])
            return token, read_life(found, token)
        except urllib.error.HTTPError as error:
            raise self._refuse(f"it answered {error.code} {error.reason}") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = getattr(error, "reason", None) or type(error).__name__
            raise self._refuse(f"it gave no token ({why})") from None

    def _refuse(self, why: str) -> LoginRefused:
        place = urllib.parse.urlsplit(self._url)._replace(query="", fragment="").geturl()
        return LoginRefused(
            f"could not get a token for client {self._client}: {why}",
            subject=f"token endpoint {place}",
            hint="check sasl.oauthbearer.token.endpoint.url, sasl.oauthbearer.client.id and "
            "sasl.oauthbearer.client.secret of the cluster",
        )


class MskTokens(AbstractTokenProvider):  # type: ignore[misc]
    """Tokens of AWS_MSK_IAM: each connection has its own, signed here."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        super().__init__()
        self._properties = properties

    def token(self) -> str:
        return sign_msk_token(self._properties)[0]

    def __repr__(self) -> str:
        return "MskTokens"
