"""See: sample offsets, judge lag, find gaps, export metrics."""
