"""Outboxes and look-back as `watch` sees them."""
