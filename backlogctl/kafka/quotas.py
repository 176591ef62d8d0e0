"""The quota that brokers grant a client for what it writes (KIP-13, KIP-55, KIP-546)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from backlogctl.clock import Deadline
from backlogctl.errors import Refused
from backlogctl.kafka.clients import Properties, find_addresses
from backlogctl.kafka.errors import RequestMissing
from backlogctl.kafka.raw_client import RawClient, ask_in_coroutine, translate_properties
from backlogctl.values import Quota
from backlogctl_delivery.kafka import COMMON, AccessDenied

USER, CLIENT = "user", "client-id"
Entity = frozenset[tuple[str, str | None]]
"""Whom a quota is for: USER, CLIENT or both, by name; None is the default of those without one."""
_KEY = "producer_byte_rate"
_ANONYMOUS = "ANONYMOUS"
_CERTIFICATES = ("ssl.certificate.location", "ssl.certificate.pem", "ssl.keystore.location")
_HINT = "or set `limits.messages_per_second` in place of `limits.quota_share`"


def resolve_quota(quotas: Mapping[Entity, float], user: str, client: str) -> float | None:
    """The quota that holds: the most specific one, as Kafka's ClientQuotaManager orders them."""
    users: tuple[Entity, ...] = (frozenset({(USER, user)}), frozenset({(USER, None)}), frozenset())
    clients: tuple[Entity, ...]
    clients = (frozenset({(CLIENT, client)}), frozenset({(CLIENT, None)}), frozenset())
    return next((quotas[a | b] for a, b in product(users, clients) if a | b in quotas), None)


def name_user(properties: Properties) -> str | None:
    """Who the client is to brokers that make no other name of it; None where they alone know."""
    protocol = str(properties.get("security.protocol", "plaintext")).upper()
    if protocol.startswith("SASL"):
        mechanism = str(properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "")
        user = properties.get("sasl.username")
        return str(user) if user and mechanism.upper().startswith(("PLAIN", "SCRAM")) else None
    shows = protocol == "SSL" and any(properties.get(name) for name in _CERTIFICATES)
    return None if shows else _ANONYMOUS


def read_quota(properties: Properties, limit: Deadline) -> Quota:
    """What the brokers say. Where only they know the user, the smallest quota that may be its.
    Raises Refused: they do not tell. ClusterUnreachable, KafkaFailure.
    """
    subject, doing = f"cluster {find_addresses(properties)}", "read the quotas of clients"
    settings, why = translate_properties(properties)
    if settings is None:
        raise Refused(
            f"`limits.quota_share` cannot be kept: quotas cannot be asked for {why}",
            subject=subject,
            hint=_HINT.removeprefix("or "),
        )
    try:
        quotas = ask_in_coroutine(settings, properties, subject, doing, limit, _ask)
    except (AccessDenied, RequestMissing) as error:
        raise Refused(
            f"`limits.quota_share` cannot be kept: {error.message}",
            subject=subject,
            hint=f"allow DESCRIBE_CONFIGS on the cluster, {_HINT}",
        ) from error
    client = str(properties.get("client.id") or COMMON["client.id"])
    user = name_user(properties)
    if user is not None:
        rate = resolve_quota(quotas, user, client)
        return Quota(rate, f"user {user} with client.id {client}")
    named = {name for entity in quotas for kind, name in entity if kind == USER and name}
    # "" stands for any user without a quota of its own.
    rates = {name: resolve_quota(quotas, name, client) for name in ("", *named)}
    rate = min((one for one in rates.values() if one is not None), default=None)
    if len(set(rates.values())) == 1:  # whoever it is
        return Quota(rate, f"client.id {client}")
    return Quota(
        rate,
        f"client.id {client} with the least of all users, as which one this login is for the "
        "brokers is unknown",
    )


async def _ask(client: RawClient) -> Mapping[Entity, float]:
    from kafka.errors import for_code
    from kafka.protocol.admin import DescribeClientQuotasRequest

    answer = await client.send(DescribeClientQuotasRequest(components=[], strict=False))
    if answer.error_code:
        raise for_code(answer.error_code)()
    return {
        frozenset((part.entity_type, part.entity_name) for part in entry.entity): one.value
        for entry in answer.entries or ()
        for one in entry.values
        if one.key == _KEY
    }
