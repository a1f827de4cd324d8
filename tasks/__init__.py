"""The stages: files in, files out. Each module is one stage of dvc.yaml or a part several stages share."""
