"""Where a partition's lost messages begin and end among the rows of its table (P2.10)."""
