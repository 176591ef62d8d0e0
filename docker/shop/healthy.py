"""The health checks of containers without curl: `healthy.py URL` asks for a page; without an
argument it looks whether the shop's program went on in the last half minute."""

from __future__ import annotations

import sys
import time
import urllib.request

from settings import ALIVE

_SILENT_SECONDS = 30.0


def main() -> None:
    if len(sys.argv) > 1:
        # The address stands in compose.yaml; an error code raises.
        urllib.request.urlopen(sys.argv[1], timeout=5).close()  # noqa: S310
    elif time.time() - ALIVE.stat().st_mtime > _SILENT_SECONDS:
        raise SystemExit("no sign of life for 30 s")


if __name__ == "__main__":
    main()
