"""TODO tasks/release/hub."""
