"""TODO tasks/host."""
