"""Checks before the first stage, a module for each of the things they look at."""
