"""TODO tasks/tracking."""
