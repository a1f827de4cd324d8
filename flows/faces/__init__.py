"""Parts of the pages that flows write: what a page shows is worked out here, templates/ says how it looks."""
