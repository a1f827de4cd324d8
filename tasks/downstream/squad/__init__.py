"""TODO tasks/downstream/squad."""
