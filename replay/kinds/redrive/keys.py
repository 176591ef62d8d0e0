"""The keys that `--key` asks for: said, or one a line of a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from backlog.errors import UsageError

_MOST = 1_000_000


def read_keys(said: Sequence[str]) -> tuple[bytes, ...]:
    """Each once, in the order of their bytes.

    Raises:
        UsageError: a file cannot be read, is empty, or holds too many.
    """
    found: set[bytes] = set()
    for word in said:
        if not word.startswith("@"):
            found.add(word.encode())
            continue
        path = Path(word[1:]).expanduser()
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            raise UsageError(
                f"the file could not be read: {error.strerror}", subject=f"--key {word}"
            ) from None
        keys = {line for line in lines if line}
        if not keys:
            raise UsageError("the file holds no key", subject=f"--key {word}")
        found |= keys
    if len(found) > _MOST:
        raise UsageError(
            f"{len(found)} keys are more than {_MOST}", subject="--key", hint="use --where"
        )
    return tuple(sorted(found))
