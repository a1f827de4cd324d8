"""Prefect: when and where the stages run. What depends on what is stated in dvc.yaml alone."""
