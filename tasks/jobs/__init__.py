"""Device jobs as stages start them: settings, process and checkpoints."""
