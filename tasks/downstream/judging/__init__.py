"""May a model be released: the gate, what it goes by, and what a release says of its answers."""
