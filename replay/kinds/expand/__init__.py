"""Expand: a backlog is drained through a temporary topic with more partitions."""
