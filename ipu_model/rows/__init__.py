"""Format and reader of packed rows on disk. Needs numpy and pyarrow only."""
