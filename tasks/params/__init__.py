"""The parameters: params.yaml, presets and overrides, their schema and its documentation, and downstream entries."""
