"""Estimates of the memory and time of a device job, before anything compiles or trains. Imports no torch."""
