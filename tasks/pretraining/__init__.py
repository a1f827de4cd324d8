"""Pre-training: the initial model, and the jobs of both phases."""
