"""A strict double of the part of Horovod that Podium uses."""
