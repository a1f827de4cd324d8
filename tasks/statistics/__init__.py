"""TODO tasks/statistics."""
