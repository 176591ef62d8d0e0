"""Kernels where nothing can be kept."""

from __future__ import annotations

import subprocess
import sys

_NOWHERE = """
from numba.core import caching
caching.CacheImpl._locator_classes = []
from backlogctl.wire.kernels import load_kernels
load_kernels()
"""


def test_without_a_place_for_their_cache_kernels_are_compiled_each_time() -> None:
    """As where a home directory may not be written, and the code is in a zip."""
    done = subprocess.run(
        [sys.executable, "-c", _NOWHERE], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
