"""Classes or values of texts, or of pairs of texts: those of one's own files, and the nine tasks of GLUE."""
