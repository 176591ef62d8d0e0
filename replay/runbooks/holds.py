"""A hold of a topic's retention that a person is asked about, beside the plans."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from backlogctl.clock import parse_duration
from backlogctl.errors import Refused
from backlogctl.formats import format_moment
from backlogctl.ledger import OPERATOR
from backlogctl.monitoring.verdict.commands import round_hold
from backlogctl.replay.engine.kind import Workspace
from backlogctl.replay.observe.retention import hold_stream
from backlogctl.replay.present.markdown import make_plain
from backlogctl.replay.runbooks.detection import Detection

# Where no loss is in sight, and a person asks for it.
_LENGTH = "6h"
# Between two looks of a broker, by default (`log.retention.check.interval.ms`).
_CHECK_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class HoldProposal:
    """What would be held, and for how long; the question in Markdown, and for how many seconds it
    is one: behind that there is nothing to hold."""

    stream: str
    length: str
    body: str
    within: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def propose_hold(workspace: Workspace, found: Detection, wait: timedelta) -> HoldProposal:
    """So long that what is unread now can be read, as far as that is known.

    Args:
        wait: how long a plan waits for its answer, behind which it puts something back.
    """
    topic, length, within = workspace.config.stream(found.stream).topic, _LENGTH, None
    if found.ahead:
        later = wait.total_seconds() if found.ahead.puts_back else 0.0
        length = round_hold(later + found.ahead.hold_seconds)
        within = max(later + found.ahead.seconds, _CHECK_SECONDS)
    body = (
        f"**Raises** the retention of topic {make_plain(topic)} for {length}, so that it deletes "
        "nothing meanwhile, and gives it back then. It is refused where the disks have no room. "
        f"Consumers go on.\n\n{make_plain(found.sentence)}"
    )
    if found.ahead:
        body = f"**Loss ahead:** {make_plain(found.ahead.sentence)}.\n\n{body}"
    return HoldProposal(found.stream, length, body, within)


def hold_topic(workspace: Workspace, stream: str, length: str) -> str:
    """Holds it for so long; one that the operator holds for longer stays so.

    Returns:
        What was done, in one sentence.

    Raises:
        Refused: the disks have no room.
        BacklogError: it could not be done.
    """
    chosen, now = workspace.config.stream(stream), workspace.ledger.now()
    mine = workspace.ledger.holds.list(stream=stream, holder=OPERATOR)
    ends = [hold.until - now for hold in mine if hold.until is not None]
    try:
        held = hold_stream(workspace, chosen, max(parse_duration(length), *ends, timedelta(0)))
    except Refused as refused:
        if "--allow" not in (refused.hint or ""):
            raise
        # The form's field for it is of plans.
        shell = f"make room; in the shell `backlogctl hold {stream} --for {length}` says what else"
        raise Refused(refused.message, subject=refused.subject, hint=shell) from None
    if held.hold is None:
        return f"topic {chosen.topic}: retention deletes nothing of it, and nothing is held"
    until = "" if held.hold.until is None else f" until {format_moment(held.hold.until)}"
    told = f"topic {chosen.topic} is held{until}"
    return "; ".join([told, *held.warnings])
