"""Rebuild: what was lost is made again from the source tables and put back once."""
