"""TODO tasks/release."""
