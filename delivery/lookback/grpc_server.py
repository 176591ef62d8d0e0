"""For applications that answer by gRPC: look-back and health checks on their own server.

server = grpc.server(ThreadPoolExecutor(4))
add_look_back(server, lambda biz_type, biz_id: "committed")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from delivery.lookback.asking.look_back_pb2 import CheckReply, CheckRequest, Status

SERVICE = "backlog.look_back.v1.LookBack"
_STATUSES = {
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
        return CheckReply(status=_STATUSES[answer(request.biz_type, request.biz_id)])

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
