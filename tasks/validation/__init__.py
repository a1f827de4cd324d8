"""Validation of corpus, examples and rows: checks, verdicts and their pages."""
