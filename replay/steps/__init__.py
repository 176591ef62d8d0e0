"""The steps of a recovery, one file each, each with the same four verbs (backlog.step)."""
