"""A time column read in the wrong zone, told from messages and their rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import median
from zoneinfo import ZoneInfo

from backlog.errors import Refused
from backlog.numbers import format_duration
from spark_backfill.messages.rules import MessageRules
from spark_backfill.sources.reflection import ColumnKind, SourceTable

# Fewer pairs than this agree by chance.
MIN_PAIRS = 5
MIN_SHIFT = timedelta(minutes=30)
# Every zone is a multiple of this away from UTC.
STEP = timedelta(minutes=15)
# How long a message may follow its row, and how far most pairs may lie from the median.
MAX_DELAY = timedelta(minutes=3)
MAX_SPREAD = timedelta(minutes=2)
# A date tells no hour.
_WITHOUT_ZONE = (ColumnKind.TIME, ColumnKind.TEXT)


@dataclass(frozen=True, slots=True)
class ZoneShift:
    """By how much rows seem to be read too early; negative: too late. `pairs` were compared."""

    by: timedelta
    pairs: int


def find_shift(pairs: Sequence[tuple[datetime, datetime]]) -> ZoneShift | None:
    """The constant shift between the times of messages and of their rows, as another zone makes it.

    Args:
        pairs: a message's time in the log, and the time of its row as it was read.
    """
    if len(pairs) < MIN_PAIRS:
        return None
    differences = [(log - row).total_seconds() for log, row in pairs]
    middle = median(differences)
    spread = median(abs(item - middle) for item in differences)
    steps = round(middle / STEP.total_seconds())
    shift = steps * STEP
    if abs(shift) < MIN_SHIFT or spread > MAX_SPREAD.total_seconds():
        return None
    if abs(middle - shift.total_seconds()) > MAX_DELAY.total_seconds():
        return None
    return ZoneShift(shift, len(pairs))


def describe_shift(shift: ZoneShift, database: str, timezone: str, at: datetime) -> str:
    """What is wrong, and which key says it.

    Args:
        timezone: what the configuration says.
        at: when the rows were written; a zone's offset depends on it.
    """
    offset = at.astimezone(ZoneInfo(timezone)).utcoffset() or timedelta(0)
    side = "before" if shift.by > timedelta(0) else "after"
    far = format_duration(abs(shift.by).total_seconds())
    return (
        f"the times of rows lie {far} {side} those of their messages in the log "
        f"({shift.pairs} compared): is `sources.{database}.timezone` right? it is {timezone}, and "
        f"the rows look like {_show_offset(offset - shift.by)}"
    )


def suspect_zone(times: Sequence[tuple[int, str]], rules: MessageRules, table: SourceTable) -> str:
    """What to say where the rows' time column, which has no zone itself, seems to be read in the
    wrong one; "" for nothing.

    Args:
        times: a message's timestamp in ms, and the time of its row in the normal form.
    """
    time = table.column(rules.source.time_column)
    if time.zoned or time.kind not in _WITHOUT_ZONE:
        return ""
    pairs = [
        (datetime.fromtimestamp(log / 1000, UTC), datetime.fromisoformat(row)) for log, row in times
    ]
    shift = find_shift(pairs)
    if shift is None:
        return ""
    return describe_shift(shift, table.database, rules.timezone, pairs[0][0])


@contextmanager
def explaining(said: str, warnings: list[str]) -> Iterator[None]:
    """Adds what is suspected to the hint of a refusal inside; where there is none, it is a warning.

    Args:
        said: "" changes nothing.
    """
    try:
        yield
    except Refused as refused:
        if not said:
            raise
        hint = f"{said}; else {refused.hint}" if refused.hint else said
        raise type(refused)(refused.message, subject=refused.subject, hint=hint) from None
    if said:
        warnings.append(said)


def _show_offset(offset: timedelta) -> str:
    minutes = round(offset.total_seconds() / 60)
    hours, rest = divmod(abs(minutes), 60)
    return f"UTC{'-' if minutes < 0 else '+'}{hours:02}:{rest:02}"
