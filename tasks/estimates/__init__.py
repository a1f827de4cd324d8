"""Estimates of memory, time and disk before a run, and measurements of single updates."""
