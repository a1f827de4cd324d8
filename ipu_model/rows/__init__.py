"""Packed rows on disk: their format, and how a job reads them. Needs numpy and pyarrow only."""
