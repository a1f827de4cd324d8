"""Pages and cards from templates, and escaping of untrusted text in every output format."""
