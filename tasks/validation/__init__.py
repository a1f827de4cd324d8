"""The checks of corpus, questions and rows, and the page of a verdict."""
