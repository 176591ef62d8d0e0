"""An issuer of tokens (OIDC), whom secured brokers believe."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

from backlogctl.sandbox.secured import MECHANISM

AUDIENCE, SECRET = "kafka", "a-long-password"
_ALLOWED = "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls"
_PACKAGE = "org.apache.kafka.common.security.oauthbearer"
_LISTENER = "listener.name.sasl_ssl.oauthbearer"


@dataclass
class Issuer:
    """Gives each client that knows the secret a token in its name.

    Attributes:
        seconds: that a token lives.
        given: the names in the tokens that were given.
        is_away: it answers 503.
    """

    seconds: float = 300.0
    given: list[str] = field(default_factory=list)
    is_away: bool = False
    url: str = ""
    key: rsa.RSAPrivateKey = field(default_factory=lambda: rsa.generate_private_key(65537, 2048))

    def login(self, client: str, secret: str = SECRET) -> dict[str, str]:
        """A client's properties."""
        return {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": client,
            "sasl.oauthbearer.client.secret": secret,
            "sasl.oauthbearer.scope": "kafka",
            "sasl.oauthbearer.token.endpoint.url": f"{self.url}/token",
        }

    def make_token(self, client: str) -> str:
        now = time.time()
        claims = {"sub": client, "aud": AUDIENCE, "iss": self.url, "iat": int(now)}
        claims["exp"] = int(now + self.seconds)
        parts = ({"alg": "RS256", "typ": "JWT", "kid": "one"}, claims)
        signed = b".".join(_encode(json.dumps(part).encode()) for part in parts)
        signature = self.key.sign(signed, padding.PKCS1v15(), SHA256())
        return b".".join((signed, _encode(signature))).decode()

    def list_keys(self) -> dict[str, Any]:
        numbers = self.key.public_key().public_numbers()
        n, e = (_encode(x.to_bytes(-(-x.bit_length() // 8))) for x in (numbers.n, numbers.e))
        key = {"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "one"}
        return {"keys": [{**key, "n": n.decode(), "e": e.decode()}]}


def _encode(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


@contextmanager
def start_issuer() -> Iterator[Issuer]:
    issuer = Issuer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, issuer.list_keys())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            login = base64.b64decode(self.headers["Authorization"].removeprefix("Basic "))
            client, _, secret = login.decode().partition(":")
            if issuer.is_away or secret != SECRET:
                self._answer(503 if issuer.is_away else 401, {"error": "invalid_client"})
                return
            issuer.given.append(client)
            token = issuer.make_token(client)
            self._answer(200, {"access_token": token, "expires_in": int(issuer.seconds)})

        def _answer(self, status: int, value: dict[str, Any]) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    issuer.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield issuer
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def make_settings(issuer: Issuer) -> dict[str, Any]:
    """How secured brokers are started that take its tokens beside passwords."""
    properties = {
        "sasl.enabled.mechanisms": f"{MECHANISM},OAUTHBEARER",
        f"{_LISTENER}.sasl.jaas.config": f"{_PACKAGE}.OAuthBearerLoginModule required;",
        f"{_LISTENER}.sasl.server.callback.handler.class": (
            f"{_PACKAGE}.OAuthBearerValidatorCallbackHandler"
        ),
        "sasl.oauthbearer.jwks.endpoint.url": f"{issuer.url}/keys",
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": issuer.url,
    }
    return {"secured": True, "properties": properties, "jvm": (f"{_ALLOWED}={issuer.url}/keys",)}
