"""Sizes to which work on a CPU is cut or filled up, known without torch: estimates count with them, too."""

from __future__ import annotations

SEQUENCE_TILE = 32
"""Tokens to a multiple of which flat.py pads each sequence. oneDNN compiles a kernel for every new shape of a
product (0.5 to 3 ms each, against 0.05 ms to run it), so real lengths must fall on few shapes."""
SCORES_PER_GROUP = 1 << 20
"""Scores of all heads in a group of flat.py, at most (a longer sequence is a group of its own): more leave the
cache, with fewer the calls themselves cost most."""
TOKEN_TILE = 64
"""Tokens, and masked tokens, are filled up to a multiple of it (flat.py): oneDNN compiles a kernel for every new shape
of a product, some milliseconds each, so that shapes must repeat. The filler is a sequence of its own that no loss
reads."""
LOGITS_AT_ONCE = 1 << 24
"""fp32 numbers, 64 MB: bound on the vocabulary logits of masked tokens while a model is evaluated."""
TOKENS_PER_PASS = 4096
"""Tokens of one forward pass of a prediction at most (but one sequence at least): more leave the cache, fewer cost
calls."""
BLOCK = 1 << 18
"""Numbers that an optimizer works on at a time, 1 MB of each tensor of an update: fewer stay nearer, more cost fewer
calls; 65,536 took 5% longer."""
