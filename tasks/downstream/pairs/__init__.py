"""Pairs of texts: sentence embeddings, for search and similarity."""
