"""Execution of one job, from its checks to its result: training loop, checkpoints, evaluation, prediction."""
