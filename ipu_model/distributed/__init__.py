"""Several processes that train one model, and the job as a process among others."""
