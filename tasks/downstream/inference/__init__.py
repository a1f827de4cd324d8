"""Use a finished model: load it, predict and evaluate a file."""
