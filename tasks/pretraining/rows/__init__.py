"""Rows for pre-training: sentence pairs, masking, shards made in parallel; or prepared sequences, packed."""
