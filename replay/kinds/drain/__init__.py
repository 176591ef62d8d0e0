"""The kind `drain`: what is unread moves off the brokers into an archive."""
