"""Puts staged messages into a topic, each once (protocol P3)."""
