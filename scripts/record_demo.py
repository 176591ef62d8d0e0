"""Runs the demo in a terminal of its own and draws what it printed as docs/demo.svg."""

from __future__ import annotations

import os
import pty
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 100
ROOT = Path(__file__).resolve().parent.parent
# Progress bars are drawn over and over: only their last state belongs into a picture.
_CONTROL = re.compile(r"\x1b\[\?25[lh]|\x1b\[\d*[A-GJK]|\x1b\[2K")


def capture_demo() -> str:
    """The demo's output, colours included."""
    os.environ.update(COLUMNS=str(WIDTH), LINES="60", TERM="xterm-256color", COLORTERM="truecolor")
    pieces: list[bytes] = []

    def read(handle: int) -> bytes:
        data = os.read(handle, 65536)
        pieces.append(data)
        return data

    status = pty.spawn([sys.executable, "-m", "examples.demo"], read)
    if status != 0:
        sys.exit("the demo failed; no picture was made")
    return b"".join(pieces).decode()


def settle(text: str) -> str:
    """What is left on the screen: a line that was drawn over counts in its last state."""
    lines: list[str] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        ups = len(re.findall(r"\x1b\[1A", line))
        while ups and lines:
            lines.pop()
            ups -= 1
        parts = [part for part in line.split("\r") if _CONTROL.sub("", part).strip()]
        lines.append(_CONTROL.sub("", parts[-1]) if parts else "")
    return "\n".join(lines).strip("\n")


def choose_scenes(text: Text) -> Text:
    """The loss, the plan, the repair and the end; the rest would make the picture too long."""
    scenes, chosen = (" status", " plan rebuild", " approve", " run "), list[Text]()
    keep = False
    for line in text.split("\n", allow_blank=True):
        if line.plain.lstrip().startswith("$ backlogctl"):
            keep = any(scene in line.plain for scene in scenes)
            if keep and chosen and chosen[-1].plain.strip():
                chosen.append(Text())
        elif re.match(r"\d  \S", line.plain):
            keep = False
        wanted = keep or line.plain.startswith(("✔", "✘"))
        if wanted and (line.plain.strip() or (chosen and chosen[-1].plain.strip())):
            chosen.append(line)
    return Text("\n").join(chosen)


def main() -> None:
    with Path(os.devnull).open("w") as nowhere:
        console = Console(
            record=True, width=WIDTH, file=nowhere, force_terminal=True, color_system="truecolor"
        )
        console.print(choose_scenes(Text.from_ansi(settle(capture_demo()))))
        console.save_svg(str(ROOT / "docs" / "demo.svg"), title="make demo")


if __name__ == "__main__":
    main()
