"""What an operator says of a redrive."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from backlog.config.base import fail_at
from replay.injection.allowing import ALLOW_LEDGER
from replay.recovery.options import OptionalMoment, list_words
from replay.recovery.plan import AllowedWords, Options

ALLOW_REPLAYS = "replays"
ALLOWED = (ALLOW_REPLAYS, ALLOW_LEDGER)


class RedriveOptions(Options):
    """Where messages are read, which of them, and where they go."""

    source: str | None = Field(
        default=None,
        title="From",
        description="Where the messages are: `log` (the stream's topic), `dlq:TOPIC` (dead "
        "letters), `archive:R` (what offload R moved), or `unprocessed` (what `audit consumed` "
        "found in the log).",
        json_schema_extra={"option": "from"},
    )
    since: OptionalMoment = Field(
        default=None,
        title="Since",
        description="Messages of this time, by their own timestamps, or later.",
    )
    until: OptionalMoment = Field(
        default=None,
        title="Until",
        description="Messages before this time, by their own timestamps.",
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
        default=(), title="Allow", description="`replays` or `ledger`: go on in spite of it."
    )

    _check_allow = list_words("allow", ALLOWED)

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.since and self.until and self.since >= self.until:
            raise fail_at(("since",), "is not before `until`")
        return self
