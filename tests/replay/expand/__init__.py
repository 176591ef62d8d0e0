"""An emergency expansion from end to end, on a real broker."""
