"""Clients that people run, each with an own record of what it handled."""
