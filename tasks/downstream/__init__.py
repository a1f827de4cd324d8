"""Downstream tasks: fine-tuning, prediction, evaluation, gate."""
