"""Runtime of stages: errors, paths, processes, streams and memory limits. No stage depends on this package."""
