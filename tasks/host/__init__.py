"""Device jobs on this host: launchers, the ledger and remote checkpoints. No stage depends on this package."""
