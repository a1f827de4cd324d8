"""Kinds of rows, one file per kind: the columns it adds to those of all rows (ipu_model/rows/format.py)."""
