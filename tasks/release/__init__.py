"""A release: its card, provenance, files and publication."""
