"""The gate: decide from scores and evidence whether a model may be released."""
