"""Numbered messages: a producer that stamps them, a checker that finds what is missing."""
