"""The command line."""

from __future__ import annotations

import sys
from pathlib import Path

from scripts.container_check.image import build, make_standins

SOURCE = Path(__file__).resolve().parents[2]


def main() -> None:
    """build DIRECTORY | run DIRECTORY [rebuild] [expand]."""
    match sys.argv[1:]:
        case ["build", place]:
            build(SOURCE, Path(place).absolute())
            make_standins(Path(place).absolute())
        case ["run", place, *actions]:
            from scripts.container_check.story import run_stack

            run_stack(SOURCE, Path(place).absolute(), actions or ["rebuild"])
        case _:
            raise SystemExit(
                "python -m scripts.container_check "
                "build DIRECTORY | run DIRECTORY [rebuild] [expand]"
            )


if __name__ == "__main__":
    main()
