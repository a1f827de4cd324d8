"""Classification and regression of texts or pairs of texts: your own files, and the nine tasks of GLUE."""
