"""Optimizers of the torch runtimes."""
