"""Optimizers of the torch runtimes, and the schedule of the learning rate."""
