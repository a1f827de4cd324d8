"""TODO tests."""
