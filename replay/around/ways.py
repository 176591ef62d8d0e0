"""Ways to cancel that several kinds know."""

from __future__ import annotations

LEAVE_CONSUMERS = "leave-consumers"  # a person starts and ends them
