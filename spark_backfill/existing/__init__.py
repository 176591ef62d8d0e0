"""Messages that exist, of a topic, an archive or dead letters: read, named, placed, staged (P9)."""
