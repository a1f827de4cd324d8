"""Pages that flows write: modules work out what a page shows, templates/ says how it looks."""
