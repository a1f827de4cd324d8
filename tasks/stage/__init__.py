"""How a stage runs: errors, paths, processes, streams and memory limits. No stage depends on this package."""
