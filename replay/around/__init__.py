"""What surrounds recoveries: holds, a stream's consumers, a look at a stream."""
