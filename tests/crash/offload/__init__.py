"""Offloads that are killed: their traffic, consumers, oracle and schedules."""
