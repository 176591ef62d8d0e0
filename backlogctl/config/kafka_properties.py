"""Which Kafka client properties a configuration file may set: an allow-list (fault 61).

A property that is not listed is refused, since librdkafka has some that load a library or run a
command, and some that the protocols depend on. The command that prints tokens is ours, and run as
those that start consumers are.
"""

from __future__ import annotations

import shlex


def _list(text: str) -> frozenset[str]:
    return frozenset(text.split())


ALLOWED_PROPERTIES = _list(
    """
    bootstrap.servers client.id client.rack client.dns.lookup security.protocol
    sasl.mechanism sasl.mechanisms sasl.username
    sasl.oauthbearer.method sasl.oauthbearer.client.id sasl.oauthbearer.scope
    sasl.oauthbearer.extensions sasl.oauthbearer.token.endpoint.url https.ca.location
    sasl.oauthbearer.token.command
    ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem ssl.crl.location
    ssl.key.location ssl.keystore.location ssl.cipher.suites ssl.curves.list ssl.sigalgs.list
    ssl.endpoint.identification.algorithm enable.ssl.certificate.verification
    socket.timeout.ms socket.connection.setup.timeout.ms socket.keepalive.enable
    socket.nagle.disable socket.send.buffer.bytes socket.receive.buffer.bytes socket.max.fails
    broker.address.family broker.address.ttl connections.max.idle.ms
    reconnect.backoff.ms reconnect.backoff.max.ms retry.backoff.ms retry.backoff.max.ms
    request.timeout.ms metadata.max.age.ms topic.metadata.refresh.interval.ms
    message.max.bytes receive.message.max.bytes max.in.flight.requests.per.connection
    compression.type compression.codec compression.level linger.ms batch.size batch.num.messages
    queue.buffering.max.messages queue.buffering.max.kbytes queue.buffering.max.ms
    fetch.wait.max.ms fetch.min.bytes fetch.max.bytes fetch.message.max.bytes
    max.partition.fetch.bytes fetch.queue.backoff.ms
    """
)

SECRET_PROPERTIES = _list(
    """
    sasl.password sasl.oauthbearer.client.secret sasl.oauthbearer.config
    ssl.key.pem ssl.key.password ssl.keystore.password
    """
)

CODE_PROPERTIES = _list(
    "plugin.library.paths sasl.kerberos.kinit.cmd ssl.engine.location ssl.providers "
    "ssl_engine_callback_data"
)

OWN_PROPERTIES = _list(
    """
    group.id group.instance.id transactional.id transaction.timeout.ms enable.idempotence acks
    request.required.acks isolation.level enable.auto.commit enable.auto.offset.store
    auto.offset.reset partitioner enable.partition.eof session.timeout.ms
    """
)

FILE_PROPERTIES: frozenset[str] = frozenset(
    name for name in ALLOWED_PROPERTIES if name.endswith(".location")
)

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM")


def check_property(name: str, value: str) -> str | None:
    """Why a property that is known by name is refused; None where it is taken.

    The answer never holds the value.
    """
    if name in CODE_PROPERTIES:
        return "refused: this property loads or runs code"
    if name in OWN_PROPERTIES:
        return "refused: backlogctl sets this property itself"
    if name in ("sasl.mechanism", "sasl.mechanisms"):
        if value.upper() == "GSSAPI":
            return "refused: the wheels of confluent-kafka have no Kerberos (Cyrus SASL)"
        if value.upper() not in MECHANISMS:
            return f"must be one of {', '.join(MECHANISMS)}"
    if name == "sasl.oauthbearer.token.endpoint.url" and not value.startswith(
        ("https://", "http://")
    ):
        return "must be an http or https URL"
    if name == "sasl.oauthbearer.token.command":
        try:
            words = shlex.split(value)
        except ValueError:
            words = []
        return None if words else "must be a program and its arguments, as in a shell"
    return None
