"""rich's Text, with what cannot be seen escaped: the only one for what the terminal shows."""

from __future__ import annotations

from typing import Any, Self

from rich import text as rich_text
from rich.style import Style

from backlogctl_delivery.visible import escape_text

# One that may be cut from another, and is escaped as that was.
AnyText = rich_text.Text


class Text(rich_text.Text):
    """A text that is printed as it is: nothing in it is markup, and nothing moves the cursor."""

    def __init__(self, text: str = "", *args: Any, **settings: Any) -> None:
        super().__init__(escape_text(text), *args, **settings)

    @classmethod
    def assemble(cls, *parts: Any, **settings: Any) -> Self:
        """As rich's."""
        made = super().assemble(*parts, **settings)
        assert isinstance(made, cls)
        return made

    def append(self, text: rich_text.Text | str, style: str | Style | None = None) -> Self:
        """As rich's."""
        super().append(escape_text(text) if isinstance(text, str) else text, style)
        return self
