"""Tests of crash."""
