"""Scoring of predictions, shared by all kinds of downstream tasks."""
