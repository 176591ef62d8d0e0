"""Benchmarks: one command each, prints a table and writes JSON."""
