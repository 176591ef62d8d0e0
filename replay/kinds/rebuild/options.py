"""What an operator says of a rebuild."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from backlog.config.base import fail_at
from replay.injection.allowing import ALLOW_LEDGER
from replay.recovery.options import OptionalMoment, list_words
from replay.recovery.plan import AllowedWords, Options

ALLOW_SURPLUS, ALLOW_PROOF = "surplus", "proof"
ALLOWED = (ALLOW_SURPLUS, ALLOW_PROOF, ALLOW_LEDGER)


class RebuildOptions(Options):
    """Time bounds, chosen gaps, and what is allowed by name; None and () leave it to the plan."""

    since: OptionalMoment = Field(
        default=None,
        title="Since",
        description="Read source rows from this time on, and `margin` before it. "
        "Else as the samples say.",
    )
    until: OptionalMoment = Field(
        default=None,
        title="Until",
        description="Read source rows up to this time, and `margin` beyond it. "
        "Else as the samples say.",
    )
    gaps: tuple[str, ...] = Field(
        default=(),
        title="Gaps",
        description="Only this gap; may be said again.",
        json_schema_extra={"option": "gap"},
    )
    to: str | None = Field(
        default=None,
        title="To",
        description="`topic` (the stream's own), `rehearsal` (a side topic that expires), or the "
        "name of another topic; only the first repairs the gaps. Else `topic`.",
    )
    allow: AllowedWords = Field(
        default=(),
        title="Allow",
        description="`surplus`, `proof` or `ledger`: go on in spite of it.",
    )

    _check_allow = list_words("allow", ALLOWED)

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.since and self.until and self.since >= self.until:
            raise fail_at(("since",), "is not before `until`")
        return self
