"""Moves in the vicinity of a sample, as pure tensor functions."""
