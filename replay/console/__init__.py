"""The page, and the server of `watch`."""
