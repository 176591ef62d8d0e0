"""The kernel: words that every other room uses; it imports nothing of ours."""
