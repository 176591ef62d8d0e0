"""Whether numbered messages are missing, looked at while they are written (protocol P7)."""
