"""The plan of a redrive: where messages were read, which were chosen, and what is staged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from backlogctl.config.base import fail_at
from backlogctl.errors import UsageError
from backlogctl.replay.engine.options import OptionalMoment, list_words
from backlogctl.replay.engine.plan import AllowedWords, Options, PlanPart
from backlogctl.replay.injection.plan import ALLOW_LEDGER, InjectionPlan
from backlogctl.spark_backfill.existing.request import Origin, RedriveOutcome
from backlogctl.spark_backfill.request import ALLOW_IDS
from backlogctl.values import OffsetRange

# What an operator says of a redrive.

ALLOW_REPLAYS = "replays"
ALLOW_UNNAMED = "unnamed"
ALLOW_DAMAGED = "damaged"
ALLOWED = (ALLOW_REPLAYS, ALLOW_UNNAMED, ALLOW_DAMAGED, ALLOW_LEDGER, ALLOW_IDS)


class RedriveOptions(Options):
    """Where messages are read, which of them, and where they go."""

    source: str | None = Field(
        default=None,
        title="From",
        description="Where the messages are: `log` (the stream's topic), `dlq:TOPIC` (dead "
        "letters), `archive:R` (what offload R moved), `passed:R` (what was passed in expansion "
        "R), or `unprocessed` (what `audit consumed` found in the log).",
        json_schema_extra={"option": "from"},
    )
    since: OptionalMoment = Field(
        default=None,
        title="Since",
        description="Messages of this time or later, by their timestamps where they are read: of "
        "dead letters the letters', not the originals'.",
    )
    until: OptionalMoment = Field(
        default=None,
        title="Until",
        description="Messages before this time, by the same timestamps as `--since`.",
    )
    offsets: tuple[str, ...] = Field(
        default=(),
        title="Offsets",
        description="`P:A-B`: offsets A to B of partition P, both included, as `gaps` shows them; "
        "`P:A` is one, `P:A-` goes to the end. May be said again.",
    )
    key: tuple[str, ...] = Field(
        default=(),
        title="Keys",
        description="Only messages of this key; `@FILE` has one key a line. May be said again.",
        json_schema_extra={"in_form": "Only messages of these keys."},
    )
    where: str | None = Field(
        default=None,
        title="Where",
        description="Only messages for which this SQL condition is true: over key, value (text), "
        "headers['NAME'], partition, offset and time.",
    )
    to: str | None = Field(
        default=None,
        title="To",
        description="`topic` (the stream's own), `rehearsal` (a side topic that expires), or the "
        "name of another topic. Else `topic`.",
    )
    everything: bool = Field(
        default=False,
        title="The whole topic",
        description="All that is there, without a bound of time or offsets.",
        json_schema_extra={"option": "all"},
    )
    allow: AllowedWords = Field(
        default=(),
        title="Allow",
        description="`replays`, `unnamed` (dead letters that name no topic are the stream's), "
        "`damaged` (files of an archive are missing or changed: what is whole is put back), "
        "`ledger` or `ids`: go on in spite of it.",
    )

    _check_allow = list_words("allow", ALLOWED)

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.since and self.until and self.since >= self.until:
            raise fail_at(("since",), "is not before `until`")
        return self


# The keys that `--key` asks for: said, or one a line of a file.

_MOST = 1_000_000


def read_keys(said: Sequence[str]) -> tuple[bytes, ...]:
    """Each once, in the order of their bytes.

    Raises:
        UsageError: a file cannot be read, is empty, or holds too many.
    """
    found: set[bytes] = set()
    for word in said:
        if not word.startswith("@"):
            found.add(word.encode())
            continue
        path = Path(word[1:]).expanduser()
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            raise UsageError(
                f"the file could not be read: {error.strerror}", subject=f"--key {word}"
            ) from None
        keys = {line for line in lines if line}
        if not keys:
            raise UsageError("the file holds no key", subject=f"--key {word}")
        found |= keys
    if len(found) > _MOST:
        raise UsageError(
            f"{len(found)} keys are more than {_MOST}", subject="--key", hint="use --where"
        )
    return tuple(sorted(found))


NAME: Final = "redrive"


class PlannedSource(PlanPart):
    """Where the messages were read: a topic, or an archive of one; `archive` is the id of the
    recovery that has them."""

    origin: Origin
    topic: str
    topic_id: str
    partitions: int
    archive: str | None = None

    @property
    def letters(self) -> str | None:
        """The topic of dead letters, where it is one."""
        return self.topic if self.origin is Origin.DEAD_LETTERS else None

    def __str__(self) -> str:
        """`the dead letters in topic orders-dlt`."""
        match self.origin:
            case Origin.ARCHIVE:
                return f"archive {self.archive} of topic {self.topic}"
            case Origin.PASSED:
                return f"what was passed in expansion {self.archive}"
            case Origin.DEAD_LETTERS:
                return f"the dead letters in topic {self.topic}"
            case _:
                return f"topic {self.topic}"


class ElsewhereTopic(PlanPart):
    """Dead letters of another topic; `exists` is None where that could not be asked."""

    topic: str
    count: int
    exists: bool | None


class RedrivePlan(InjectionPlan):
    """What is approved, put back and verified.

    Attributes:
        ranges: what was read of the source.
        keys: how many keys were asked for; 0 for all.
        gaps: those that it closes; () where messages were chosen.
        lost_only: of an archive it takes what waits there or was lost again, and nothing else.
        elsewhere: dead letters of other topics, which are not put back.
        damaged: offsets of the archive that cannot be read: gaps with one of them stay open.
        outcome: what Spark found and staged.
        options: as they were said; without the keys where `mask` hides these.
    """

    version: int = 1
    kind: Literal["redrive"] = NAME
    source: PlannedSource
    ranges: tuple[OffsetRange, ...]
    keys: int
    elsewhere: tuple[ElsewhereTopic, ...]
    outcome: RedriveOutcome
    options: RedriveOptions
    gaps: tuple[str, ...] = ()
    lost_only: bool = False
    damaged: tuple[OffsetRange, ...] = ()

    def closes(self, gap_id: str) -> bool:
        """Not one of which a message is left out: it stays open."""
        return gap_id in self.gaps

    @property
    def slots(self) -> tuple[int, ...]:
        """The partitions that get messages: one slot each."""
        return tuple(sorted(self.outcome.slots))

    @property
    def message_count(self) -> int:
        """Messages that are staged."""
        return self.outcome.counts.staged

    @property
    def quarantined(self) -> int:
        """Messages that are too large for the target."""
        return self.outcome.counts.quarantined
