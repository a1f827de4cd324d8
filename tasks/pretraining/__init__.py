"""Pre-training: the model to start from, and the jobs of both phases."""
