"""Extractive question answering in the format of SQuAD."""
