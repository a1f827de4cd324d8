"""TODO tasks/downstream."""
