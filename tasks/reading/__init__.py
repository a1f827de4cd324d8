"""TODO tasks/reading."""
