"""What KEDA asks of an external scaler by gRPC; the same as JSON is in `app`.

A metric `consumers` with the target 1 makes KEDA and the HPA come to the number itself: they want
metric / target pods. An error is what makes them keep those that there are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Semaphore
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from backlogctl.config import mask_secrets
from backlogctl.errors import BacklogError, ConfigurationError, UsageError
from backlogctl.monitoring.watch.scaler import Scaler, ScalerAnswer, ScalingHeld
from backlogctl.replay.web.externalscaler_pb2 import (
    GetMetricSpecResponse,
    GetMetricsRequest,
    GetMetricsResponse,
    IsActiveResponse,
    MetricSpec,
    MetricValue,
    ScaledObjectRef,
)
from backlogctl.replay.web.server import parse_address

LOG = logging.getLogger(__name__)
SERVICE = "externalscaler.ExternalScaler"
METRIC = "consumers"
_TARGET = 1
# Each open stream of `StreamIsActive` keeps a thread; others than these answer the calls.
_MOST_STREAMS, _THREADS = 64, 8
_MOST_BYTES = 1 << 16
_STREAM_SECONDS = 2.0
_STOP_SECONDS = 1.0


class ExternalScaler:
    """KEDA's service on a scaler; `stopping` ends its open streams."""

    def __init__(self, scaler: Scaler, stopping: Event) -> None:
        self._scaler, self._stopping = scaler, stopping
        self._streams = Semaphore(_MOST_STREAMS)

    def make_handler(self) -> Any:
        """What a `grpc.Server` takes."""
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        methods: dict[str, Any] = {
            "IsActive": (unary, self._tell_active, ScaledObjectRef),
            "StreamIsActive": (stream, self._stream_active, ScaledObjectRef),
            "GetMetricSpec": (unary, self._tell_target, ScaledObjectRef),
            "GetMetrics": (unary, self._tell_metric, GetMetricsRequest),
        }
        handlers = {
            name: make(
                behavior,
                request_deserializer=request.FromString,
                response_serializer=lambda answer: answer.SerializeToString(),
            )
            for name, (make, behavior, request) in methods.items()
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _tell_active(self, request: ScaledObjectRef, context: Any) -> IsActiveResponse:
        return IsActiveResponse(result=self._answer(request, context).active)

    def _stream_active(self, request: ScaledObjectRef, context: Any) -> Iterator[IsActiveResponse]:
        """Says it at once, and when it changes; what is not known ends the stream with an error."""
        if not self._streams.acquire(blocking=False):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams are open")
        told: bool | None = None
        try:
            while context.is_active() and not self._stopping.is_set():
                active = self._answer(request, context).active
                if active is not told:
                    yield IsActiveResponse(result=active)
                told = active
                self._stopping.wait(_STREAM_SECONDS)
        finally:
            self._streams.release()

    def _tell_target(self, request: ScaledObjectRef, context: Any) -> GetMetricSpecResponse:
        """Told of each stream, also while its number is not known: without it KEDA makes no HPA."""
        name = request.scalerMetadata.get("stream", "")
        _abort_on_error(context, lambda: self._scaler.find(name))
        target = MetricSpec(metricName=METRIC, targetSize=_TARGET, targetSizeFloat=_TARGET)
        return GetMetricSpecResponse(metricSpecs=[target])

    def _tell_metric(self, request: GetMetricsRequest, context: Any) -> GetMetricsResponse:
        count = self._answer(request.scaledObjectRef, context).consumers
        value = MetricValue(metricName=METRIC, metricValue=count, metricValueFloat=count)
        return GetMetricsResponse(metricValues=[value])

    def _answer(self, request: ScaledObjectRef, context: Any) -> ScalerAnswer:
        name = request.scalerMetadata.get("stream", "")
        answer: ScalerAnswer = _abort_on_error(context, lambda: self._scaler.answer(name))
        return answer


def _abort_on_error(context: Any, work: Callable[[], Any]) -> Any:
    try:
        return work()
    except BacklogError as error:
        code = grpc.StatusCode.UNAVAILABLE
        if isinstance(error, ScalingHeld | ConfigurationError):
            code = grpc.StatusCode.FAILED_PRECONDITION
        elif isinstance(error, UsageError):
            code = grpc.StatusCode.INVALID_ARGUMENT
        told = mask_secrets(str(error))
    except Exception as error:
        LOG.exception("an answer to KEDA")
        code, told = grpc.StatusCode.INTERNAL, f"internal error ({type(error).__name__})"
    return context.abort(code, told)  # it raises


@contextmanager
def serve_scaler(
    scaler: Scaler, address: str, subject: str, tls: tuple[Path, Path] | None = None
) -> Iterator[str]:
    """Serves KEDA's `ExternalScaler`, and gRPC's health checks, until the block ends; gives the
    address with its port.

    Args:
        address: `HOST:PORT`; port 0 takes a free one.
        subject: the key that the address is of, for the error.
        tls: certificate and key.

    Raises:
        UsageError: it cannot be listened on, or the files cannot be used.
    """
    host, port = parse_address(address, subject)
    stopping = Event()
    with ThreadPoolExecutor(_MOST_STREAMS + _THREADS, thread_name_prefix="backlog-scaler") as pool:
        options = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", _MOST_BYTES))
        server = grpc.server(pool, options=options)
        server.add_generic_rpc_handlers((ExternalScaler(scaler, stopping).make_handler(),))
        health_service = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(health_service, server)
        for name in ("", SERVICE):
            health_service.set(name, health_pb2.HealthCheckResponse.SERVING)
        place = f"[{host}]" if ":" in host else host
        try:
            if tls is None:
                taken = server.add_insecure_port(f"{place}:{port}")
            else:
                pair = (tls[1].read_bytes(), tls[0].read_bytes())
                taken = server.add_secure_port(
                    f"{place}:{port}", grpc.ssl_server_credentials([pair])
                )
        except (OSError, RuntimeError) as error:
            raise UsageError(
                f"{address} cannot be listened on",
                subject=subject,
                hint="take another HOST:PORT, port 0 for any free one; with `watch.tls`, see "
                "whether its files can be read",
            ) from error
        server.start()
        try:
            yield f"{place}:{taken}"
        finally:
            stopping.set()
            server.stop(_STOP_SECONDS).wait()
