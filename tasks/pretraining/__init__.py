"""TODO tasks/pretraining."""
