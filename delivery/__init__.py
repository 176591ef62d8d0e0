"""Don't lose it in the first place: what a team takes into its producers and consumers."""
