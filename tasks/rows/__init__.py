"""Packed rows: sequences put together, written for ipu_model to read, and what is held out of them."""
