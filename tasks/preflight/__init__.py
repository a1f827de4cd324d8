"""TODO tasks/preflight."""
