"""Look-back by gRPC (look_back.proto): how services are asked, and how an application answers.

server = grpc.server(ThreadPoolExecutor(4))
add_look_back(server, lambda biz_type, biz_id: "committed")
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from backlogctl_delivery.errors import Refused
from backlogctl_delivery.lookback.checkers import (
    MOST_BYTES,
    Answer,
    Question,
    Resolver,
    read_status,
)
from backlogctl_delivery.lookback.look_back_pb2 import CheckReply, CheckRequest, Status
from backlogctl_delivery.lookback.messages import Outcome
from backlogctl_delivery.lookback.settings import ServiceSettings

METHOD = "/backlog.look_back.v1.LookBack/Check"
_STATUSES = {
    Status.COMMITTED: Outcome.COMMITTED.value,
    Status.ROLLED_BACK: Outcome.ROLLED_BACK.value,
    Status.UNKNOWN: Outcome.UNKNOWN.value,
}


class GrpcChecker:
    def __init__(self, service: ServiceSettings) -> None:
        assert service.grpc is not None
        self._authority = service.grpc
        self._host, self._port = service.address
        self._resolver = Resolver(self._host, self._port, service.networks, service.at_once)
        self._seconds = service.timeout.total_seconds()
        self._tls = service.tls
        token = service.token
        self._metadata = () if token is None else (("authorization", f"Bearer {token}"),)

    async def ask(self, question: Question) -> Answer:
        try:
            async with asyncio.timeout(self._seconds):
                addresses = await self._resolver.resolve()
                return await self._ask_at(addresses, question)
        except TimeoutError:
            return Answer(Outcome.FAILED, f"no answer in {self._seconds:g} s")
        except Refused as error:
            return Answer(Outcome.REFUSED, error.message)
        except aio.AioRpcError as error:
            # Its text is the service's own, and may hold anything.
            return Answer(Outcome.FAILED, f"gRPC status {error.code().name}")
        except OSError as error:
            return Answer(Outcome.FAILED, type(error).__name__)

    async def close(self) -> None:
        """No connection is kept: a channel would outlive the look at its address."""
        self._resolver.close()

    async def _ask_at(self, addresses: list[str], question: Question) -> Answer:
        async with self._open_channel(addresses) as channel:
            call = channel.unary_unary(
                METHOD,
                request_serializer=CheckRequest.SerializeToString,
                response_deserializer=CheckReply.FromString,
            )
            reply = await call(
                CheckRequest(biz_type=question.biz_type, biz_id=question.biz_id),
                timeout=self._seconds,
                metadata=self._metadata,
            )
        return read_status(_STATUSES.get(reply.status))

    def _open_channel(self, addresses: list[str]) -> aio.Channel:
        family = {ip_address(address).version for address in addresses}
        # A target is of one family.
        version = 4 if 4 in family else 6
        places = [
            f"{address}:{self._port}" if version == 4 else f"[{address}]:{self._port}"
            for address in addresses
            if ip_address(address).version == version
        ]
        target = f"ipv{version}:{','.join(places)}"
        options = (
            ("grpc.default_authority", self._authority),
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),
            ("grpc.max_receive_message_length", MOST_BYTES),
            ("grpc.max_metadata_size", MOST_BYTES),
            # A channel of its own, not one that an earlier look at the name has opened.
            ("grpc.use_local_subchannel_pool", 1),
        )
        if not self._tls:
            return aio.insecure_channel(target, options)
        named = (*options, ("grpc.ssl_target_name_override", self._host))
        return aio.secure_channel(target, grpc.ssl_channel_credentials(), named)


SERVICE = "backlog.look_back.v1.LookBack"
_ANSWERS = {
    "committed": Status.COMMITTED,
    "rolled_back": Status.ROLLED_BACK,
    "unknown": Status.UNKNOWN,
}


def add_look_back(
    server: Any, answer: Callable[[str, str], str], *, with_health: bool = True
) -> None:
    """Adds what look-back asks to a `grpc.Server`.

    Args:
        server: not started yet.
        answer: given business type and id, says `committed`, `rolled_back` or `unknown`. What it
            raises is an error of the call, which settles nothing. Say `unknown` for what is not
            there: its transaction may still be open.
        with_health: adds `grpc.health.v1` too; leave it out where the server has its own.
    """

    def check(request: CheckRequest, _: Any) -> CheckReply:
        return CheckReply(status=_ANSWERS[answer(request.biz_type, request.biz_id)])

    handler = grpc.unary_unary_rpc_method_handler(
        check,
        request_deserializer=CheckRequest.FromString,
        response_serializer=CheckReply.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {"Check": handler}),)
    )
    if with_health:
        servicer = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        for name in ("", SERVICE):
            servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
