"""TODO tasks/pretraining/rows."""
