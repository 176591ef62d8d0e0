"""The doctor: what would lose messages or stop a recovery, judged from settings taken together."""
