"""Prefect flows: when and where stages run. Dependencies between stages are declared in dvc.yaml only."""
