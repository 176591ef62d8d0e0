"""`python -m tests.replay.held run ID` is `backlogctl` that waits for whoever wants to stop it.

`HELD_AT` says where: after its first wave, or at the end of the verification. A test that asks for
an end is then never too late, however long it takes to ask.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from backlogctl.clock import Deadline
from backlogctl.replay.engine.brakes import check_brakes
from backlogctl.replay.engine.kind import RunContext
from backlogctl.replay.injection import steps
from backlogctl.replay.injection.context import InjectionContext

HELD_AT = "HELD_AT"
WAVE, VERIFICATION = "wave", "verification"
HELD_SECONDS = 240.0
_TICK = 0.05


def hold(patch: Callable[[Any, str, Any], None], place: str) -> None:
    """Changes the product in this process; `patch` sets an attribute."""
    before: list[int] = []
    record = InjectionContext.record

    def wait_and_check(context: RunContext[Any]) -> None:
        """Lets the first wave of this process go, and then none."""
        limit = Deadline(HELD_SECONDS)
        while not (limit.expired or context.interrupts.asked):
            now = context.workspace.ledger.recoveries.get(context.recovery.id)
            before.append(now.injected)
            if now.requested or now.injected == before[0]:
                break
            time.sleep(_TICK)
        check_brakes(context)

    def wait_and_record(context: RunContext[Any], action: str, **detail: Any) -> None:
        if action == "read back":
            time.sleep(HELD_SECONDS)
        record(context, action, **detail)

    if place == WAVE:
        patch(steps, "check_brakes", wait_and_check)
    else:
        patch(InjectionContext, "record", wait_and_record)


if __name__ == "__main__":
    hold(setattr, os.environ[HELD_AT])
    from backlogctl.replay.cli import main

    sys.exit(main())
