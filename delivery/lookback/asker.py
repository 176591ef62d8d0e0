"""Asks services about messages that fell silent, many at once: no service waits for another.

Each service has so many questions under way at most. What hangs keeps only its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

from backlog.config import LookBack, LookBackService
from backlog.crashpoints import reach
from delivery.lookback.asking.interface import Answer, Checker, Question
from delivery.lookback.checks import (
    claim_questions,
    claim_unlisted,
    park_unprepared,
    record_answer,
)
from delivery.lookback.claims import Claim
from delivery.lookback.database import Database
from delivery.lookback.metrics import NOT_LISTED, Metrics
from delivery.lookback.states import Outcome

_IDLE_SECONDS = 0.3
_PARTING_SECONDS = 2.0
_UNLISTED = 100
_NOT_LISTED = Answer(Outcome.REFUSED, "the configuration names no such service")


def make_checker(service: LookBackService) -> Checker:
    """Who asks this service; gRPC is imported only where one needs it."""
    if service.grpc is not None:
        from delivery.lookback.asking.grpc_checker import GrpcChecker

        return GrpcChecker(service)
    from delivery.lookback.asking.http_checker import HttpChecker

    return HttpChecker(service)


class Asker:
    """One instance's questions.

    Args:
        token: of this instance's leases.
    """

    def __init__(
        self, database: Database, settings: LookBack, token: str, metrics: Metrics
    ) -> None:
        self._database, self._settings = database, settings
        self._token, self._metrics = token, metrics
        self._under_way: Counter[str] = Counter()

    def run(self, stop: threading.Event) -> None:
        """Asks until told to stop; what is not answered soon after is asked when its lease ends.

        Raises:
            LookBackDatabaseError: begin again; what was under way is asked when its lease ends.
        """
        asyncio.run(self._run(stop))

    async def _run(self, stop: threading.Event) -> None:
        checkers = {name: make_checker(one) for name, one in self._settings.services.items()}
        self._under_way.clear()
        asked: set[asyncio.Task[None]] = set()
        try:
            async with asyncio.TaskGroup() as tasks:
                while not stop.is_set():
                    for name, checker in checkers.items():
                        for claim in await self._claim(name):
                            self._under_way[name] += 1
                            task = tasks.create_task(self._ask(name, checker, claim))
                            asked.add(task)
                            task.add_done_callback(asked.discard)
                    await asyncio.to_thread(self._settle_others)
                    await asyncio.sleep(_IDLE_SECONDS)
                if asked:
                    await asyncio.wait(asked, timeout=_PARTING_SECONDS)
                for task in asked:
                    task.cancel()
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            for checker in checkers.values():
                await checker.close()

    async def _claim(self, name: str) -> list[Claim]:
        limits = self._settings.services[name]
        room = limits.at_once - self._under_way[name]
        if room <= 0:
            return []
        # Beyond the longest answer there is time to record it.
        lease = limits.timeout + self._settings.lease / 2
        return await asyncio.to_thread(
            claim_questions, self._database, name, self._token, lease, room
        )

    async def _ask(self, name: str, checker: Checker, claim: Claim) -> None:
        try:
            reach("p8.asked.before")
            question = Question(claim.row["biz_type"], claim.row["biz_id"])
            answer = await checker.ask(question)
            await asyncio.to_thread(self._record, name, claim, answer)
        finally:
            self._under_way[name] -= 1

    def _record(self, name: str, claim: Claim, answer: Answer) -> None:
        record_answer(self._database, self._settings, claim, answer)
        self._metrics.checks.labels(name, answer.outcome).inc()

    def _settle_others(self) -> None:
        """Messages that nobody can be asked about."""
        for claim in claim_unlisted(self._database, self._settings, self._token, _UNLISTED):
            self._record(NOT_LISTED, claim, _NOT_LISTED)
        park_unprepared(self._database, self._settings)
