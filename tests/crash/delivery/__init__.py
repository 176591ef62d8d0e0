"""Outbox, look-back and handle_once, killed at random."""
