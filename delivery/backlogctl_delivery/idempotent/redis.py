"""Marks in Redis, for work that has no SQL transaction: an e-mail, a call to another service.

    marks = RedisMarks(
        Redis(...), "mailer", lease=timedelta(minutes=1), keep=timedelta(days=7), when_away="closed"
    )
    with marks.handle_once(message) as attempt:
        if attempt.is_first:
            send_mail(...)                          # once more where `attempt.was_begun`
    consumer.commit(message)

The work and its mark are two things here. A crash between them has the work done once more.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any, Literal

import redis
from redis import exceptions

from backlogctl_delivery.errors import UsageError
from backlogctl_delivery.idempotent.attempts import (
    HEADERS,
    Attempt,
    Counts,
    Identity,
    InProgress,
    LeaseLost,
    MarksAway,
    PayloadConflict,
    WithoutId,
    read_message_id,
    read_payload,
)
from backlogctl_delivery.visible import escape_name

WhenAway = Literal["open", "closed"]

_LOG = logging.getLogger(__name__)
_LEAST_PAUSE, _MOST_PAUSE = 0.02, 0.5  # seconds between two looks at another's attempt
_AWAY = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    exceptions.OutOfMemoryError,
    exceptions.ClusterDownError,
)

# One record for each id, a hash: `state` (begun or done), `owner` (an attempt's token), `until`
# (the lease's end, ms of Redis's own clock), `payload` (a hash of it), `again` (was taken over).
# A client that heard no answer asks again with its token, so each script may run twice.
_BEGIN = """
local owner, payload, lease, keep = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local held = redis.call('HMGET', KEYS[1], 'state', 'owner', 'until', 'payload', 'again')
if held[1] then
  if payload ~= '' and held[4] ~= '' and held[4] ~= payload then return {'conflict', 0} end
  if held[1] == 'done' then return {'done', 0} end
  if held[2] == owner then return {held[5] == '1' and 'again' or 'first', 0} end
  if tonumber(held[3]) > now then return {'busy', tonumber(held[3]) - now} end
end
redis.call('HSET', KEYS[1], 'state', 'begun', 'owner', owner, 'until',
  string.format('%.0f', now + lease), 'payload', payload, 'again', held[1] and '1' or '0')
redis.call('PEXPIRE', KEYS[1], math.max(keep, lease))
return {held[1] and 'again' or 'first', 0}
"""
# What Redis has lost is marked all the same: the work is done.
_END = """
local owner = redis.call('HGET', KEYS[1], 'owner')
if owner and owner ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'state', 'done', 'owner', ARGV[1], 'payload', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
"""
# The lease ends at once, and that it was begun stays known.
_GIVE_UP = """
local held = redis.call('HMGET', KEYS[1], 'owner', 'state')
if held[1] == ARGV[1] and held[2] == 'begun' then redis.call('HSET', KEYS[1], 'until', '0') end
return 1
"""


class RedisMarks:
    """What one consumer has begun and done, in Redis; threads may share it.

    Args:
        client: with time limits (`socket_timeout`): as long as it waits, so does the consumer.
        consumer: a name of its own; keys are `once:{consumer}:{id}`.
        lease: how long an attempt is nobody else's: longer than the longest work, shorter than the
            consumer's `max.poll.interval.ms`.
        keep: how long marks stay: longer than a message may come again.
        when_away: what happens while Redis cannot be used. `open`: the work is done without a mark,
            so that repeats are done again. `closed`: MarksAway is raised, and nothing goes on.
        wait: how long another worker's attempt is waited for; None for as long as the lease.
        identity, without_id: as for `Marks`.
    """

    def __init__(
        self,
        client: redis.Redis,
        consumer: str,
        *,
        lease: timedelta,
        keep: timedelta,
        when_away: WhenAway,
        wait: timedelta | None = None,
        identity: Identity = HEADERS,
        without_id: WithoutId = "refuse",
    ) -> None:
        if when_away not in ("open", "closed") or not consumer or not timedelta(0) < lease <= keep:
            raise UsageError(
                "a name, a lease above zero, `keep` of at least the lease, and `when_away` of "
                "`open` or `closed` are needed",
                subject=f"marks of {escape_name(consumer) or 'a consumer'}",
                hint="see docs/idempotent-consumer.md",
            )
        self.name, self._when_away = consumer, when_away
        self._lease, self._keep = (int(each / timedelta(milliseconds=1)) for each in (lease, keep))
        # What a lease needs to be seen as over: Redis counts in ms, and looks are apart.
        self._wait = (lease if wait is None else wait).total_seconds() + _MOST_PAUSE
        self._identity, self._without_id = identity, without_id
        self._begin = client.register_script(_BEGIN)
        self._end = client.register_script(_END)
        self._give_up = client.register_script(_GIVE_UP)
        self._is_away = False
        self.counts = Counts()

    @property
    def unmarked(self) -> int:
        """Turns whose work was done without a mark, as Redis was away."""
        return self.counts.read()["unmarked"]

    def handle_once(
        self, message: Any, payload: bytes | None = None
    ) -> AbstractContextManager[Attempt]:
        """A block whose work is done where `attempt.is_first`; it is marked when the block ends.

        What the block raises gives the attempt up: the next worker begins at once (`was_begun`).

        Args:
            message: of confluent_kafka or kafka-python; or an id.
            payload: what must be the same whenever the id comes; by default the message's value.

        Raises:
            NoMessageId: it has no id that can be kept.
            PayloadConflict: the id came before, with another payload.
            InProgress: another worker still has the attempt.
            LeaseLost: another worker took the attempt over before the work was done.
            MarksAway: Redis cannot be used, and `when_away` is `closed`. At the block's end: the
                work is done and not marked.
            UsageError: nobody asked `is_first`.
        """
        return self.counts.around(self._handle(message, payload))

    @contextmanager
    def _handle(self, message: Any, payload: bytes | None) -> Iterator[Attempt]:
        message_id = read_message_id(message, self._identity, self._without_id)
        if message_id is None:
            attempt = Attempt(None, is_first=True, is_marked=False)
            yield attempt
            attempt.check_asked()
            return
        keys, owner = [f"once:{self.name}:{message_id}"], secrets.token_hex(8)
        payload = read_payload(message) if payload is None else payload
        digest = "" if payload is None else hashlib.sha256(payload).hexdigest()[:32]
        attempt = self._take(keys, owner, digest, message_id)
        is_held = attempt.is_marked and attempt._is_first
        try:
            yield attempt
            attempt.check_asked()
        except BaseException:
            if is_held:
                self._ask(lambda: self._give_up(keys, [owner]), is_over=True)
            raise
        if is_held:
            answer = self._ask(lambda: self._end(keys, [owner, digest, self._keep]))
            attempt.is_marked = answer is not None
            if answer == 0:
                raise LeaseLost(
                    "the work took longer than the lease, and another worker took it over: it is "
                    "done twice",
                    subject=self._name(message_id),
                    hint="give a longer lease; the mark is the other worker's",
                )

    def _take(self, keys: list[str], owner: str, digest: str, message_id: str) -> Attempt:
        """Waits while another worker has it."""
        limit, pause = time.monotonic() + self._wait, _LEAST_PAUSE
        words: list[str | int] = [owner, digest, self._lease, self._keep]
        while True:
            answer = self._ask(lambda: self._begin(keys, words))
            if answer is None:
                return Attempt(message_id, is_first=True, is_marked=False)
            status, left = answer
            status = status.decode() if isinstance(status, bytes) else status
            if status == "conflict":
                raise PayloadConflict(
                    "its id came before, with another payload",
                    subject=self._name(message_id),
                    hint="two messages share an id, or one was changed: mend what gives the ids",
                )
            if status != "busy":
                return Attempt(message_id, is_first=status != "done", was_begun=status == "again")
            if time.monotonic() + pause > limit:
                raise InProgress(
                    f"another worker has its attempt, for {left / 1000:.1f} s more",
                    subject=self._name(message_id),
                    hint="read it again later, and do not commit its offset before",
                )
            time.sleep(pause)
            pause = min(2 * pause, _MOST_PAUSE)

    def _ask(self, call: Callable[[], Any], *, is_over: bool = False) -> Any:
        """What Redis answers; None where it is away and the work goes on without.
        `is_over`: the block failed, and that is what is raised.
        """
        try:
            answer = call()
        except exceptions.AuthenticationError:
            raise  # A ConnectionError to the library, but one that stays.
        except _AWAY as error:
            if is_over:
                return None
            if self._when_away == "closed":
                raise MarksAway(
                    f"Redis cannot be used: {type(error).__name__}",
                    subject=f"marks of {escape_name(self.name)}",
                    hint="do not commit the offset, and read the message again; work that was done "
                    "is done once more",
                ) from error
            if not self._is_away:
                _LOG.warning(
                    "marks of %s: Redis cannot be used (%s): work goes on without marks, and "
                    "repeats are done again",
                    escape_name(self.name),
                    type(error).__name__,
                )
            self._is_away = True
            return None
        if self._is_away:
            _LOG.warning("marks of %s: Redis is back", escape_name(self.name))
            self._is_away = False
        return answer

    def _name(self, message_id: str) -> str:
        return f"message {escape_name(message_id)} of {escape_name(self.name)}"
