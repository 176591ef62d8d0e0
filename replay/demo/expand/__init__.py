"""The story of an expansion."""
