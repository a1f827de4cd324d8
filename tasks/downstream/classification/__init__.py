"""Classes, or values, of texts of one's own."""
