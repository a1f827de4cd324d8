"""Training and inference of BERT on one device. The package imports nothing; start at `ipu_model.jobs.job`."""
