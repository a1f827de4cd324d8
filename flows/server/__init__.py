"""Prefect servers: local and remote, their API, and the artifacts of runs on them."""
