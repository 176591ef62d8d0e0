"""Evidence that a row's message was not lost: one class a file, one contract for all."""
