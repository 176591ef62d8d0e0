"""`python -m replay.cli`: the same command as `backlogctl`."""

import sys

from replay.cli import main

sys.exit(main())
