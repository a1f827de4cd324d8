"""How BERT trains on one device. Importing the package imports nothing; start at `ipu_model.jobs.job`."""
