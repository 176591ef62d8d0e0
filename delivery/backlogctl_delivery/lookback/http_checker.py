"""Asks by HTTP: `POST {"biz_type", "biz_id"}`, answered by `{"status": ...}`.

No redirect is followed, no proxy is used, and an answer is read up to a limit of bytes and of time.
"""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlsplit

import httpx

from backlogctl_delivery.errors import Refused
from backlogctl_delivery.lookback.checkers import (
    MOST_BYTES,
    Answer,
    Question,
    Resolver,
    read_status,
)
from backlogctl_delivery.lookback.messages import Outcome
from backlogctl_delivery.lookback.settings import ServiceSettings


class HttpChecker:
    def __init__(self, service: ServiceSettings) -> None:
        assert service.http is not None
        parts = urlsplit(service.http)
        self._url = httpx.URL(service.http)
        self._host, port = service.address
        self._resolver = Resolver(self._host, port, service.networks, service.at_once)
        self._seconds = service.timeout.total_seconds()
        headers = {"Host": parts.netloc, "User-Agent": "backlogctl", "Accept-Encoding": "identity"}
        if service.token is not None:
            headers["Authorization"] = f"Bearer {service.token}"
        self._client = httpx.AsyncClient(
            headers=headers,
            follow_redirects=False,
            trust_env=False,
            timeout=self._seconds,
            # A connection that is kept would outlive the look at its address.
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    async def ask(self, question: Question) -> Answer:
        try:
            # Over all: an answer that comes drop by drop stays within every single limit.
            async with asyncio.timeout(self._seconds):
                addresses = await self._resolver.resolve()
                return await self._ask_first(addresses, question)
        except TimeoutError:
            return Answer(Outcome.FAILED, f"no whole answer in {self._seconds:g} s")
        except Refused as error:
            return Answer(Outcome.REFUSED, error.message)
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            return Answer(Outcome.FAILED, type(error).__name__)

    async def close(self) -> None:
        self._resolver.close()
        await self._client.aclose()

    async def _ask_first(self, addresses: list[str], question: Question) -> Answer:
        """The first address that a connection can be made to."""
        for address in addresses[:-1]:
            try:
                return await self._ask_at(address, question)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
        return await self._ask_at(addresses[-1], question)

    async def _ask_at(self, address: str, question: Question) -> Answer:
        body = {"biz_type": question.biz_type, "biz_id": question.biz_id}
        async with self._client.stream(
            "POST",
            self._url.copy_with(host=address),
            json=body,
            # The certificate is that of the name.
            extensions={"sni_hostname": self._host},
        ) as response:
            if response.status_code != httpx.codes.OK:
                return Answer(Outcome.FAILED, f"HTTP status {response.status_code}")
            content = bytearray()
            async for part in response.aiter_raw():
                content += part
                if len(content) > MOST_BYTES:
                    return Answer(Outcome.FAILED, f"its answer has more than {MOST_BYTES} bytes")
        try:
            document = json.loads(content)
        except (ValueError, RecursionError):
            return Answer(Outcome.FAILED, "its answer is not JSON")
        return read_status(document.get("status") if isinstance(document, dict) else None)
