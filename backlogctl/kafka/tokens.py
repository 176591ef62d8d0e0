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
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from kafka.net.sasl.oauth import AbstractTokenProvider

from backlogctl_delivery.kafka import LoginRefused, sign_msk_token

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
# Where nobody says how long it lives.
_LIFE_SECONDS = 60.0
_MOST_BYTES = 1024 * 1024


def uses_oidc(properties: Mapping[str, Any]) -> bool:
    """Whether these are the properties of OAUTHBEARER with client credentials."""
    method = str(properties.get("sasl.oauthbearer.method", "default")).lower()
    return method == "oidc" and all(properties.get(name) for name in OIDC_NAMES[:3])


def find_tokens(properties: Mapping[str, Any]) -> OidcTokens:
    """The tokens of this login, the same ones for all clients of a process."""
    return _keep_tokens(tuple(str(properties.get(name, "")) for name in OIDC_NAMES))


@lru_cache(maxsize=64)
def _keep_tokens(settings: tuple[str, ...]) -> OidcTokens:
    return OidcTokens(*settings)


class OidcTokens(AbstractTokenProvider):  # type: ignore[misc]
    """Tokens of one login; thread-safe."""

    def __init__(
        self,
        url: str,
        client: str,
        secret: str,
        scope: str = "",
        extensions: str = "",
        ca: str = "",
    ) -> None:
        super().__init__()
        self._url, self._client, self._secret, self._scope = url, client, secret, scope
        self._extensions, self._ca = extensions, ca
        self._lock = threading.Lock()
        self._token, self._until = "", 0.0

    def token(self) -> str:
        """One that is good now.
        Raises LoginRefused: the endpoint gives none.
        """
        with self._lock:
            if time.monotonic() >= self._until:
                began = time.monotonic()
                self._token, seconds = self._fetch()
                self._until = began + _SHARE * seconds
            return self._token

    def extensions(self) -> dict[str, str]:
        """SASL extensions (RFC 7628, section 3.1; KIP-342)."""
        parts = (one.partition("=") for one in self._extensions.split(",") if one)
        return {name.strip(): value.strip() for name, _, value in parts}

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
            return token, _read_life(found, token)
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


def _read_life(found: Mapping[str, Any], token: str) -> float:
    """Seconds that it lives: as the answer says, else as the token itself does (RFC 7519)."""
    if found.get("expires_in") is not None:
        return float(found["expires_in"])
    try:
        body = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        return float(claims["exp"]) - time.time()
    except (IndexError, ValueError, KeyError, TypeError):
        return _LIFE_SECONDS
