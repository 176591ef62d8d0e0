"""Source tables: what their columns are, and how they are read in parallel."""
