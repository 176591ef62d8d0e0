"""Python programs of the zoo."""
