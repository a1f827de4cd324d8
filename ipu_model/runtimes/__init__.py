"""Training and prediction on a CPU, a GPU or IPUs, each behind the protocol of runtime.py."""
