"""TODO tasks/rows."""
