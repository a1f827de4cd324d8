"""A WordPiece tokenizer, trained or taken, and texts encoded with it."""
