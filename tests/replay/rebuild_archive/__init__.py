"""What offloads have moved off the log is put back by rebuilds."""
