"""Text from outside in pages, cards and tables, and the pictures on them."""
