"""The compose file, the image and what they mount, as far as they can be checked without an engine."""
