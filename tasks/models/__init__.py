"""Models that a user brings: their files, architecture, license and language."""
