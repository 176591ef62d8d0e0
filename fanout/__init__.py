"""Drain: relay a backlog into a temporary topic, launch consumers there, cut over, restore."""
