"""The relay: copies the source topic's backlog into the temporary topic, each message once."""
