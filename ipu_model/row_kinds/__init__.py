"""The columns that a kind of rows adds to those of all rows (ipu_model/rows/format.py): one file a kind."""
