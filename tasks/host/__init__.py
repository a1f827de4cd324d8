"""How a device job is started on this host, and how its checkpoints travel. No stage depends on it."""
