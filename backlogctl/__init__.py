"""Kafka backlogs: see them grow, drain them, rebuild what expired.

The modules here are the kernel, which imports nothing else of ours. The rooms (`replay`,
`monitoring`, ...) are links to the folders beside this one; a wheel has them as folders.
"""

from pathlib import Path

# What a process must have on its path to import us.
IMPORT_ROOT = Path(__file__).parents[1]
