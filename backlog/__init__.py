"""The kernel: what every other package uses; it imports nothing of ours."""
