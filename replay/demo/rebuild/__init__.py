"""The story of a rebuild."""
