"""Checks before the first stage: host, device, disk, files, the Hub and the Prefect server."""
