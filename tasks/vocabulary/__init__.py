"""WordPiece tokenizers, trained or loaded, and encoding with them."""
