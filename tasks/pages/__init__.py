"""TODO tasks/pages."""
