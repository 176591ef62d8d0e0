"""What cannot be read now: said when it begins, and when it ends, and not between."""

from __future__ import annotations

from collections.abc import Callable

from backlog.errors import BacklogError

# Called with what cannot be read and why when an outage begins, and with None when it ends.
OnOutage = Callable[[str, BacklogError | None], None]


class Outages:
    """What fails now; each outage is reported when it begins and when it ends."""

    def __init__(self, report: OnOutage) -> None:
        self._report = report
        self._failing: set[str] = set()

    def begin(self, what: str, error: BacklogError) -> None:
        """It failed, perhaps again."""
        if what not in self._failing:
            self._failing.add(what)
            self._report(what, error)

    def note(self, what: str, error: BacklogError | None) -> None:
        """What came of it."""
        if error is None:
            self.end(what)
        else:
            self.begin(what, error)

    def end(self, *names: str) -> None:
        """These answer."""
        for name in names:
            if name in self._failing:
                self._failing.discard(name)
                self._report(name, None)
