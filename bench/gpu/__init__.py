"""Everything that CUDA must prove, in one command: `python -m bench.gpu` (`make gpu`)."""
