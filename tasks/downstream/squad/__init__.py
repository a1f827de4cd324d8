"""Questions and answers as SQuAD has them."""
