"""Runs on workers: deployments, dispatch, worker processes and their reports."""
