"""Packed rows: packing of sequences, row files for ipu_model, and held-out data."""
