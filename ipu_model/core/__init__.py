"""Helpers that need only the standard library, for every part of the project."""
