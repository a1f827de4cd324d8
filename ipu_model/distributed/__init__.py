"""Data-parallel training in several processes, and process control of a job."""
