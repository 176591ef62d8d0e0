"""Whether a message's work is this worker's to do."""

from __future__ import annotations

from backlog.errors import UsageError
from backlog.visible import escape_name


class Turn:
    """What `handle_once` gives. Do the work only where `is_first`, or where the turn is true.

    Attributes:
        message_id: None where the message has none and that is allowed.
        was_begun: an earlier attempt began and did not end: its work may be there already, in part
            or in full. Never with SQL, where an attempt that did not end left nothing.
        is_marked: False where no mark is kept, so that a repeat will not be known.
    """

    __slots__ = ("_is_first", "_was_asked", "is_marked", "message_id", "was_begun")

    def __init__(
        self,
        message_id: str | None,
        *,
        is_first: bool,
        was_begun: bool = False,
        is_marked: bool = True,
    ) -> None:
        self.message_id, self.was_begun, self.is_marked = message_id, was_begun, is_marked
        self._is_first, self._was_asked = is_first, False

    @property
    def is_first(self) -> bool:
        """Whether nobody has done the work yet."""
        self._was_asked = True
        return self._is_first

    def __bool__(self) -> bool:
        return self.is_first

    def check_asked(self) -> None:
        """A block that never asks would do the work each time.

        Raises:
            UsageError: nobody asked `is_first`.
        """
        if not self._was_asked:
            raise UsageError(
                "nobody asked whether its work is still to be done",
                subject=f"message {escape_name(self.message_id or 'without an id')}",
                hint="do the work under `if turn.is_first:`; nothing was marked",
            )
