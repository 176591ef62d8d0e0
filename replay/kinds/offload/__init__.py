"""The kind `offload`: what is unread moves off the brokers into an archive."""
