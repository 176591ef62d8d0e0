"""What Prometheus scrapes: one catalogue of names, and what fills it."""
