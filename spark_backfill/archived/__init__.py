"""What a rebuild takes from archives, beside rows of a table."""
