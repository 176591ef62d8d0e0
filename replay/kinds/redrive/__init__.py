"""Redrive: messages that exist are put back, of the log, an archive or dead letters (P9)."""
