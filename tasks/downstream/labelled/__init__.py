"""Texts, and pairs of texts, that have a class or a value each: what the kinds share whose examples are such."""
