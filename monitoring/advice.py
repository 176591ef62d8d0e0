"""What to type next, for a verdict."""

from __future__ import annotations

from backlogctl_delivery.visible import quote_word
from monitoring.verdicts import Verdict

HOLD_FOR = "6h"


def suggest_commands(
    stream: str,
    verdict: Verdict,
    *,
    cluster: str = "",
    group: str = "",
    has_consumers: bool,
    has_source: bool,
) -> tuple[str, ...]:
    """The commands that help, the best first; none where all is well, or a person must look.

    Args:
        stream: "" for a group that no stream is about: it has to be added before it is repaired.
        has_consumers: the tool knows how to start the stream's consumers.
        has_source: it knows the table that lost messages are rebuilt from.
    """
    if not stream:
        needs_one = verdict in (Verdict.LOST, Verdict.LOSING, Verdict.STOP, Verdict.STALL)
        return (
            (f"backlogctl status --cluster {quote_word(cluster)} --group {quote_word(group)}",)
            if needs_one
            else ()
        )
    hold = f"backlogctl hold {stream} --for {HOLD_FOR}"
    expand = f"backlogctl plan expand {stream}"
    match verdict:
        case Verdict.LOSING:
            return (hold, expand) if has_consumers else (hold,)
        case Verdict.LOST:
            gaps = f"backlogctl gaps {stream}"
            return (f"backlogctl plan rebuild {stream}", gaps) if has_source else (gaps,)
        case Verdict.WARN:
            return (expand,) if has_consumers else ()
        case Verdict.STALL | Verdict.STOP if has_consumers:
            return (f"backlogctl consumers status {stream}",)
        case Verdict.OK | Verdict.LAGGING:
            return ()
    return (f"backlogctl status {stream}",)
