"""Tests of backlog."""
