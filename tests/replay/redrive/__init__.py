"""A redrive from plan to verified, on a real broker and Spark."""
