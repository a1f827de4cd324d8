"""Benchmarks of this project's speed against common alternatives. See bench/README.md."""
