"""Tests of the wire engine's parts."""
