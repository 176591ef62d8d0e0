"""`python -m backlogctl.replay.cli`: the same command as `backlogctl`."""

import sys

from backlogctl.replay.cli import main

sys.exit(main())
