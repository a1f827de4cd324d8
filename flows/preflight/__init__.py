"""Checks before the first stage, by what they look at."""
