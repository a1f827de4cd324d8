"""TODO tasks/vocabulary."""
