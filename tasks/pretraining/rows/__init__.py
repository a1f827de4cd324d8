"""Rows for pre-training: sentence pairs, masking, and shards made in parallel; or packed prepared sequences."""
