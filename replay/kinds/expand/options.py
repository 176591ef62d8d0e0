"""What an operator says of an expansion."""

from __future__ import annotations

from pydantic import Field

from fanout.layout import MAX_FACTOR
from replay.recovery.options import list_words
from replay.recovery.plan import AllowedWords, Options

ALLOW_DISK = "disk"
ALLOWED = (ALLOW_DISK,)
# Ways to cancel.
REWIND = "rewind"
ORDERS = ("key", "round_robin")
STARTS = ("earliest", "latest")


class ExpandOptions(Options):
    """Speed, size and order of the temporary layout; None takes the configuration's."""

    rate: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        title="Rate",
        description="Messages one consumer handles a second. Else as measured from samples.",
    )
    factor: int | None = Field(
        default=None,
        ge=1,
        le=MAX_FACTOR,
        title="Factor",
        description="Temporary partitions for each partition. Else `expand.factor`.",
    )
    order: str | None = Field(
        default=None,
        title="Order",
        description="`key` keeps messages of a key in order; `round_robin` spreads evenly. "
        "Else `expand.order`.",
        json_schema_extra={"words": list(ORDERS)},
    )
    start: str = Field(
        default=STARTS[0],
        description="Where partitions without a commit begin: `earliest` or `latest`.",
        json_schema_extra={"words": list(STARTS)},
    )
    allow: AllowedWords = Field(
        default=(), title="Allow", description="`disk`: go on though the copy does not fit."
    )

    try_one: bool = Field(
        default=False,
        title="Try one consumer first",
        description="Start one consumer on an empty topic: whom it joins, and what it reads. "
        "Nobody is stopped.",
        json_schema_extra={"option": "try"},
    )

    _check_allow = list_words("allow", ALLOWED)
    _check_order = list_words("order", ORDERS)
    _check_start = list_words("start", STARTS)
