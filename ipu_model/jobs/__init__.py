"""Contract of a device job: job and result files, the plan of its updates, and fingerprints."""
