"""Rebuild lost messages from the source tables and inject them once."""
