"""Each message's work once, however often the message comes: marks in SQL or in Redis."""
