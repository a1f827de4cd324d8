"""What people open: pages and cards from templates, and every format that text from outside is written in."""
