"""TODO tasks/downstream/glue."""
