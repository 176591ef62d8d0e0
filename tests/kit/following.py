"""Types what is printed as the next command of a recovery, word for word, until none is left."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

from tests.kit.shop import Said

# Runs `backlogctl` with these words, whatever its exit code.
Call = Callable[..., Said]
_ID = re.compile(r"r-\d{8}-\d{4}-\w+")
_MOST = 9


def follow(
    call: Call,
    recovery: str,
    *,
    handle: Callable[[str], None] = lambda _: None,
    first: Said | None = None,
) -> list[str]:
    """Types each command that is printed as the next one, until none is left or only a look at
    the stream; R is the recovery in them, P and Q those that it led to.

    Args:
        call: takes the words, and `code=None`.
        handle: called with each command before it is typed, for what a person does besides.
        first: what the first command is taken from; `show` of the recovery.
    """
    said, typed, known = first or call("show", recovery), list[str](), {recovery: "R"}
    while command := find_next(said):
        told = command.removeprefix("backlogctl ")
        for name in _ID.findall(told):
            told = told.replace(name, known.setdefault(name, "RPQSTUVW"[len(known)]))
        if told.startswith("status "):
            break
        assert told not in typed, f"again: {typed}, {said}"
        assert len(typed) < _MOST, typed
        typed.append(told)
        handle(told)
        said = call(*shlex.split(command.replace("NAME", "tester"))[1:], code=None)
    assert said.code == 0, (typed, said)
    return typed


def find_next(said: Said) -> str:
    """The command that comes next, as it is printed; "" where none is."""
    lines = [*said.out.splitlines(), *said.err.splitlines()]
    found = [line.removeprefix("next: ") for line in lines if line.startswith("next: ")]
    return found[0] if found else ""
