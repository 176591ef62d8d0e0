"""Requests that confluent-kafka cannot make, through kafka-python's admin client.

Its properties have other names, and not every login can be translated. Of its parts that it does
not promise, the ones used are here and in `coordinators`; a test says which version they hold for.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeVar

from confluent_kafka import KafkaError

from backlogctl.clock import Deadline
from backlogctl.errors import BacklogError, ClusterUnreachable, KafkaFailure
from backlogctl.kafka.clients import (
    Properties,
    ask_in_turns,
    find_addresses,
    make_admin,
    wait_for_broker,
)
from backlogctl.kafka.errors import RequestMissing, translate
from backlogctl_delivery.kafka import (
    COMMON,
    TOKEN_COMMAND,
    EncryptionRefused,
    LoginRefused,
    uses_msk,
)

Result = TypeVar("Result")
Item = TypeVar("Item")

# One request must not hold a coordinator for long.
NAMES_AT_ONCE = 64
_REQUEST_TIMEOUT_MS = 30_000
_PAUSE = 0.2
# Seconds.
_EXPLAINED_AFTER = 2.0
_EXPLAINED_WITHIN = 4.0
_SASL = frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"})
_NAMES: Mapping[str, str] = {
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "ssl.crl.location": "ssl_crlfile",
    "client.id": "client_id",
}
_TOKENS = "sasl_oauth_token_provider"
_UNTRANSLATED = (
    "ssl.ca.pem",
    "ssl.certificate.pem",
    "ssl.key.pem",
    "ssl.keystore.location",
    "ssl.cipher.suites",
    "ssl.curves.list",
    "ssl.sigalgs.list",
)


def translate_properties(properties: Properties) -> tuple[dict[str, Any] | None, str]:
    """librdkafka's properties as kafka-python takes them; None, and what of them it cannot take."""
    protocol = str(properties.get("security.protocol", "plaintext")).upper()
    mechanism = str(properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "")
    found: dict[str, Any] = {
        "bootstrap_servers": [part.strip() for part in find_addresses(properties).split(",")],
        "security_protocol": protocol,
        "client_id": COMMON["client.id"],  # both clients by one name: quotas go by it
    }
    if protocol.startswith("SASL") and uses_msk(properties):
        from backlogctl.kafka.tokens import MskTokens

        found |= {"sasl_mechanism": "OAUTHBEARER", _TOKENS: MskTokens(properties)}
    elif protocol.startswith("SASL"):
        if mechanism.upper() not in _SASL:
            return None, f"with sasl.mechanism {mechanism or 'GSSAPI'}"
        found["sasl_mechanism"] = mechanism.upper()
        if mechanism.upper() == "OAUTHBEARER":
            from backlogctl.kafka.tokens import find_tokens, uses_oidc

            if TOKEN_COMMAND not in properties and not uses_oidc(properties):
                return None, "with sasl.mechanism OAUTHBEARER without sasl.oauthbearer.method oidc"
            found[_TOKENS] = find_tokens(properties)
    if protocol.endswith("SSL"):
        for name in _UNTRANSLATED:
            if properties.get(name):
                return None, f"with {name}"
        if str(properties.get("enable.ssl.certificate.verification", "true")).lower() == "false":
            return None, "without verification of the certificate"
        algorithm = str(properties.get("ssl.endpoint.identification.algorithm", "https"))
        found["ssl_check_hostname"] = algorithm.lower() != "none"
    for name, theirs in _NAMES.items():
        if properties.get(name) is not None:
            found[theirs] = str(properties[name])
    return found, ""


class RawClient:
    """One client; not thread-safe. `admin` is kafka-python's own."""

    def __init__(
        self, settings: Mapping[str, Any], limit: Deadline, properties: Properties | None = None
    ) -> None:
        """Connects.

        Args:
            settings: of `translate_properties`.
            properties: what they were translated from. kafka-python does not say why it cannot
                connect: after some seconds librdkafka is asked.

        Raises:
            LoginRefused, EncryptionRefused: the brokers are there.
            Exception: kafka-python's own; see `translate_error`.
        """
        from kafka.errors import KafkaTimeoutError

        if _TOKENS in settings:
            settings[_TOKENS].token()  # kafka-python would only try again
        # It tries one broker, by chance, for the whole time; the next turn may try another.
        seconds, is_first = min(_EXPLAINED_AFTER, limit.remaining() / 4), True
        while limit.remaining() > seconds:
            with suppress(KafkaTimeoutError):
                self._connect(settings, limit.part(seconds))
                return
            if properties is not None and is_first and limit.seconds > _EXPLAINED_AFTER:
                _explain(properties, limit)
            seconds, is_first = seconds * 2, False
        self._connect(settings, limit)

    def _connect(self, settings: Mapping[str, Any], limit: Deadline) -> None:
        from kafka import KafkaAdminClient

        # It connects in its constructor; one that fails there leaves a thread unless it is closed.
        self.admin = KafkaAdminClient.__new__(KafkaAdminClient)
        self.admin._closed = False
        self._open = ExitStack()
        self._open.enter_context(_silenced())
        self._open.callback(self._close_admin)
        try:
            self.admin.__init__(
                **settings,
                bootstrap_timeout_ms=max(1, int(limit.remaining() * 1000)),
                # Who asks has a limit of his own, and this client may serve another after him.
                request_timeout_ms=_REQUEST_TIMEOUT_MS,
                reconnect_backoff_max_ms=1000,
            )
        except BaseException:
            self.close()
            raise

    async def send(self, request: Any, node: int | None = None) -> Any:
        """Sends a request to a broker, to any where none is named, and awaits the answer."""
        from kafka.errors import NodeNotReadyError

        known = self.admin._manager.cluster
        if node is not None and known.broker_metadata(node) is None:
            await known.refresh_metadata()  # one that was away, or is new
            if known.broker_metadata(node) is None:
                # Who named it knows more of it than who was asked now, or less: it may come back.
                raise NodeNotReadyError(node)
        return await self.admin._manager.send(request, node_id=node)

    @property
    def requests(self) -> Collection[int]:
        """Keys of the requests that the broker it first connected to named (ApiVersions)."""
        keys: Collection[int] = self.admin._manager.broker_version_data.api_versions
        return keys

    @property
    def broker_version(self) -> tuple[int, ...]:
        """As kafka-python takes it from those requests, such as (3, 9)."""
        return tuple(self.admin._manager.broker_version_data.broker_version)

    def list_brokers(self) -> list[int]:
        """Node ids, as far as the newest metadata goes."""
        return [broker.node_id for broker in self.admin._manager.cluster.brokers()]

    def run(self, work: Callable[[], Coroutine[Any, Any, Result]], limit: Deadline) -> Result:
        """Runs a coroutine that sends requests; what a broker refuses only for now is tried again.

        Raises:
            BrokerResponseError: a broker refused, or still does at the end of the limit.
            TimeoutError: it was not through in time; close the client then.
        """
        from kafka.errors import BrokerResponseError

        while True:
            try:
                return self._run_once(work, limit)
            except BrokerResponseError as error:
                # Such as a coordinator that is loading after a start of its broker.
                if not error.retriable or limit.remaining() <= _PAUSE:
                    raise
            time.sleep(_PAUSE)

    def send_soon(self, request: Any, node: int) -> Any:
        """Sends a request to a broker, for `await_sent` to await the answer."""
        return self.start(lambda: self.send(request, node))

    def start(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Runs a coroutine beside others, for `await_sent` to await what it returns."""
        return self.admin._manager.call_soon(work)

    def await_sent(self, sent: Any, limit: Deadline) -> Any:
        """The answer to what `send_soon` has sent, or the outcome of what `start` has started.

        Raises:
            TimeoutError: there is none within the limit; await it again.
            Exception: kafka-python's own.
        """
        done = threading.Event()
        sent.add_both(lambda _: done.set())
        if not done.wait(limit.remaining()):
            raise TimeoutError
        if sent.exception is not None:
            raise sent.exception
        return sent.value

    def _run_once(self, work: Callable[[], Coroutine[Any, Any, Result]], limit: Deadline) -> Result:
        done = threading.Event()
        future = self.admin._manager.call_soon(work)
        future.add_both(lambda _: done.set())
        if not done.wait(limit.remaining() + 1.0):
            raise TimeoutError
        if isinstance(future.exception, GeneratorExit):
            raise ConnectionAbortedError("the client was closed before the broker had answered")
        if future.exception is not None:
            raise future.exception
        result: Result = future.value
        return result

    def close(self) -> None:
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _close_admin(self) -> None:
        with suppress(Exception):
            self.admin.close()


class _Kept:
    """Clients that nobody uses now, by their settings, while they are kept."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.idle: defaultdict[str, list[RawClient]] = defaultdict(list)


_KEPT = _Kept()


@contextmanager
def keep_clients() -> Iterator[None]:
    """Within it a client that is given back is kept, connected, for the next who takes one. For
    those who ask of many streams: to connect takes longer than most answers."""
    with _KEPT.lock:
        _KEPT.users += 1
    try:
        yield
    finally:
        with _KEPT.lock:
            _KEPT.users -= 1
            idle = [] if _KEPT.users else [one for some in _KEPT.idle.values() for one in some]
            if not _KEPT.users:
                _KEPT.idle.clear()
        for client in idle:
            client.close()


def take_client(
    settings: Mapping[str, Any], limit: Deadline, properties: Properties | None = None
) -> RawClient:
    """One that was kept, or a new one; arguments and errors as of `RawClient`."""
    with _KEPT.lock:
        idle = _KEPT.idle.get(repr(sorted(settings.items())))
        if idle:
            return idle.pop()
    return RawClient(settings, limit, properties)


def give_back(settings: Mapping[str, Any], client: RawClient) -> None:
    """After the last answer; one of which an answer may still come is closed instead."""
    with _KEPT.lock:
        if _KEPT.users:
            _KEPT.idle[repr(sorted(settings.items()))].append(client)
            return
    client.close()


@contextmanager
def lend_client(
    settings: Mapping[str, Any], limit: Deadline, properties: Properties | None = None
) -> Iterator[RawClient]:
    """`take_client` and `give_back`; closed after an error."""
    client = take_client(settings, limit, properties)
    try:
        yield client
    except BaseException:
        client.close()
        raise
    give_back(settings, client)


def ask_in_coroutine(
    settings: Mapping[str, Any],
    properties: Properties,
    subject: str,
    doing: str,
    limit: Deadline,
    work: Callable[[RawClient], Coroutine[Any, Any, Result]],
) -> Result:
    """What a coroutine makes of its requests; for what may be done twice: it runs in turns.

    Args:
        settings: of `translate_properties`.

    Raises:
        ClusterUnreachable, KafkaFailure, LoginRefused, EncryptionRefused.
    """

    def call(turn: Deadline) -> Result:
        is_connected = False
        try:
            with lend_client(settings, turn, properties) as client:
                is_connected = True
                return client.run(lambda: work(client), turn)
        except Exception as error:
            found = translate_error(error, doing, subject)
            if not is_connected and type(found) is ClusterUnreachable:
                places = find_addresses(properties)
                found.message = (
                    f"could not {doing}: no broker at {places} answered within {limit.seconds:g} s"
                )
            raise found from error

    return ask_in_turns(limit, call)


def _explain(properties: Properties, limit: Deadline) -> None:
    """Raises what librdkafka knows of why nobody lets us in."""
    try:
        subject = f"cluster {find_addresses(properties)}"
        within = Deadline(min(_EXPLAINED_WITHIN, limit.remaining()))
        wait_for_broker(make_admin(properties), subject, "connect", within)
    except (LoginRefused, EncryptionRefused):
        raise
    except BacklogError:
        return


def translate_error(error: Exception, doing: str, subject: str) -> BacklogError:
    """kafka-python's errors become ours."""
    from kafka.errors import (
        BrokerResponseError,
        KafkaConnectionError,
        KafkaTimeoutError,
        NodeNotReadyError,
        UnsupportedVersionError,
    )

    if isinstance(error, BacklogError):
        return error
    if isinstance(error, UnsupportedVersionError):
        return RequestMissing(subject, doing, type(error).__name__)
    if isinstance(error, BrokerResponseError):
        found = translate(KafkaError(error.errno), subject, doing)
        found.retryable = found.retryable or bool(error.retriable)
        return found
    away = (OSError, TimeoutError, KafkaConnectionError, KafkaTimeoutError, NodeNotReadyError)
    if isinstance(error, away) or getattr(error, "retriable", False):
        return ClusterUnreachable(
            f"could not {doing}: a broker that was asked did not answer ({type(error).__name__})",
            subject=subject,
            hint="check that all brokers are up and that the address is right",
        )
    return KafkaFailure(f"could not {doing}: {type(error).__name__}", subject=subject)


@dataclass
class _Silence:
    """Who asks now, and the level that the log had before the first of them."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    asking: int = 0
    level: int = logging.NOTSET


_SILENCE = _Silence()


@contextmanager
def _silenced() -> Iterator[None]:
    """Keeps kafka-python's log quiet: it repeats the errors, and prints properties."""
    logger = logging.getLogger("kafka")
    with _SILENCE.lock:
        if not _SILENCE.asking:
            _SILENCE.level = logger.level
            logger.setLevel(logging.CRITICAL + 1)
        _SILENCE.asking += 1
    try:
        yield
    finally:
        with _SILENCE.lock:
            _SILENCE.asking -= 1
            if not _SILENCE.asking:
                logger.setLevel(_SILENCE.level)


# Which broker coordinates which group or transactional id, remembered until the broker says that it
# no longer does.
#
# kafka-python 3.0 remembers that too, but never forgets it, and fails for all groups where one of
# them may not be asked for.


class Coordinators:
    """The coordinators of one client's groups; or, of kind TRANSACTION, of transactional ids."""

    def __init__(self, client: RawClient, kind: Literal["GROUP", "TRANSACTION"] = "GROUP") -> None:
        self._admin = client.admin
        self._manager = client.admin._manager
        self._send = client.send
        self._kind = kind
        self._nodes: dict[str, int] = {}
        self._silent: set[int] = set()

    async def find(self, name: str) -> int:
        """The broker of a name. Raises BrokerResponseError: the error code that it answers."""
        from kafka.errors import for_code

        if name not in self._nodes and (
            code := (await self._look_for([name], self._silent)).get(name)
        ):
            raise for_code(code)()
        return self._nodes[name]

    async def ask(
        self, name: str, request: Any, take: Callable[[Any], Any] = lambda answer: answer
    ) -> Any:
        """What the coordinator of a name answers.

        Args:
            take: the part of an answer that has its `error_code`.

        Raises:
            BrokerResponseError: the error code; the coordinator is looked for anew.
        """
        from kafka.errors import for_code

        found = take(await self._send(request, await self.find(name)))
        if found.error_code:
            self.forget([name])
            raise for_code(found.error_code)()
        return found

    async def ask_all(
        self,
        names: Sequence[str],
        work: Callable[[int, Sequence[str]], Coroutine[Any, Any, dict[str, Result | int]]],
        found: dict[str, Result],
        silent: set[int],
    ) -> dict[str, Exception]:
        """Asks each coordinator for its names; adds to `found` what they answer, piece by piece.

        Args:
            work: the answers of a broker by name, or an error code.
            silent: brokers that did not answer; they come last: who waits for them has the others.

        Returns:
            By name why there is no answer; coordinators of those are looked for anew.
        """
        from kafka.errors import for_code

        why: dict[str, Exception] = {}
        last: list[tuple[int, list[str]]] = []
        for some in cut([name for name in names if name not in found], NAMES_AT_ONCE):
            codes = await self._look_for([n for n in some if n not in self._nodes], silent)
            why |= {name: for_code(code)() for name, code in codes.items()}
            nodes: defaultdict[int, list[str]] = defaultdict(list)
            for name in some:
                if name in self._nodes:
                    nodes[self._nodes[name]].append(name)
            for node, ours in nodes.items():
                if node in silent:
                    last.append((node, ours))
                else:
                    why |= await self._ask_node(node, ours, work, found, silent)
        for node, ours in last:
            why |= await self._ask_node(node, ours, work, found, silent)
        self.forget(why)
        return why

    async def _ask_node(
        self,
        node: int,
        names: Sequence[str],
        work: Callable[[int, Sequence[str]], Coroutine[Any, Any, dict[str, Result | int]]],
        found: dict[str, Result],
        silent: set[int],
    ) -> dict[str, Exception]:
        from kafka.errors import KafkaError, for_code

        try:
            answers = await work(node, names)
        except (OSError, KafkaError) as error:
            silent.add(node)
            if self._admin._closed:  # its time was over, and nobody else answers this client
                raise
            return dict.fromkeys(names, error)
        silent.discard(node)
        why: dict[str, Exception] = {}
        for name, answer in answers.items():
            if isinstance(answer, int):
                why[name] = for_code(answer)()
            else:
                found[name] = answer
        return why

    async def _ask_any(self, request: Any, silent: set[int]) -> Any:
        """What the first broker answers that does; those that were silent are asked last."""
        from kafka.errors import KafkaError

        nodes: list[Any] = [one.node_id for one in self._manager.cluster.brokers()] or [None]
        random.shuffle(nodes)
        nodes.sort(key=silent.__contains__)
        for node in nodes:
            try:
                answer = await self._send(request, node)
            except (OSError, KafkaError):
                silent.add(node)
                if self._admin._closed or node == nodes[-1]:
                    raise
            else:
                silent.discard(node)
                return answer
        raise AssertionError

    def forget(self, names: Iterable[str]) -> None:
        """They have moved."""
        for name in names:
            self._nodes.pop(name, None)

    async def _look_for(self, names: Sequence[str], silent: set[int]) -> dict[str, int]:
        """Notes who coordinates them; by name the error codes."""
        from kafka.protocol.metadata.find_coordinator import CoordinatorType, FindCoordinatorRequest

        kind, rows = CoordinatorType[self._kind], []
        if self._manager.broker_version_data.api_version(FindCoordinatorRequest) >= 4:
            if names:
                request = FindCoordinatorRequest(
                    key_type=kind.value, coordinator_keys=list(names), min_version=4
                )
                rows = [
                    (row.key, row) for row in (await self._ask_any(request, silent)).coordinators
                ]
        else:
            for name in names:
                request = FindCoordinatorRequest(key=name, key_type=kind.value, max_version=3)
                rows.append((name, await self._ask_any(request, silent)))
        codes = {}
        for name, row in rows:
            if row.error_code:
                codes[name] = row.error_code
                continue
            # Its address too: the metadata may not name this broker yet.
            self._manager.cluster.add_coordinator(row, kind, name, synthesize_node_id=False)
            self._nodes[name] = row.node_id
        return codes


def cut(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """The items in pieces of at most that many."""
    for first in range(0, len(items), size):
        yield items[first : first + size]
