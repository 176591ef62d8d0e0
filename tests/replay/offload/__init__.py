"""Offloads on a real broker, with real consumers and Spark."""
