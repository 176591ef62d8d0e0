"""What a whole topic, its archives and tables say about losses that no offset shows."""
