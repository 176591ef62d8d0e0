"""All groups of a cluster: one pass reads them, windows remember them, and they are judged."""
