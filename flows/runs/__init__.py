"""A run: its parameters, request, checkout, record, locks and log."""
