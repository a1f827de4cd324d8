"""Runtimes for CPU, GPU and IPUs, each an implementation of the protocol in runtime.py."""
