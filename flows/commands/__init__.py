"""One module a command of `podium`; each reads its words, calls the rest, and prints for people."""
