"""How good or bad a word is: a verdict, state or level has one tone wherever it is drawn.

The page and the report have a CSS class for each tone, the terminal a style.
"""

from __future__ import annotations

from collections.abc import Mapping

STYLES: Mapping[str, str] = {
    "good": "bold green",
    "calm": "cyan",
    "odd": "magenta",
    "warn": "yellow",
    "bad": "bold red",
    "worst": "bold red",
    "dim": "dim",
    "strong": "bold",
    "": "",
}
_WORDS = {
    # verdicts of streams; of plans and audits; states; levels of the doctor's findings
    "good": "ok healthy exact covering chosen archives wins clean passed verified done",
    "calm": "lagging within planned staged injected approved",
    "odd": "unknown paused",
    "warn": "warn blocked stall stop rewind short running late warns",
    "bad": "beyond_end losing surplus loses suspect parked stops",
    "worst": "lost open failed",
    "dim": "no_deadline noted waived rejected cancelled pending",
}
_TONES = {word: tone for tone, words in _WORDS.items() for word in words.split()}


def find_tone(word: object, urgency: object = None) -> str:
    """The tone of a verdict or state, `calm` where it has none; the word always stands with it.

    Args:
        urgency: how near a loss is: one for which there is time does not look like one of now.
    """
    if str(word) == "losing" and urgency == "later":
        return "warn"
    return _TONES.get(str(word).replace(" ", "_"), "calm")
