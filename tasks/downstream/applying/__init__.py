"""Using a finished model without a plan: which model, what a file holds for it, its answers and its scores."""
