"""What the stages share that start a device job: its settings, its process, its checkpoints."""
