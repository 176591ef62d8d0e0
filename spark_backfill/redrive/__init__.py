"""The plan of a redrive: which messages that exist are put back, frozen and staged (P9)."""
