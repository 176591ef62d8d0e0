"""What an operator says of an offload."""

from __future__ import annotations

from pydantic import Field

from replay.recovery.options import list_words
from replay.recovery.plan import AllowedWords, Options

ALLOW_DISK, ALLOW_LOSE, ALLOW_UNKNOWN = "disk", "lose", "unknown-groups"
ALLOW_OTHERS = "other-groups"  # said with a name: `other-groups:NAME`


class OffloadOptions(Options):
    """Whether it is archived, and what is allowed by name."""

    discard: bool = Field(
        default=False,
        title="Discard",
        description="Archive nothing: what is unread is deleted, and can at best be rebuilt from "
        "the tables.",
    )
    allow: AllowedWords = Field(
        default=(),
        title="Allow",
        description="Go on in spite of it; may be said again. `disk`: the archive's place has not "
        "enough room, or that is unknown, or it is on a broker's own disk. `lose`: discard though "
        "the stream has no source. `other-groups:NAME`: group NAME loses what it has not read. "
        "`unknown-groups`: there may be groups that the tool may not see.",
    )

    _check_allow = list_words(
        "allow", (ALLOW_DISK, ALLOW_LOSE, ALLOW_UNKNOWN), named=(ALLOW_OTHERS,)
    )
