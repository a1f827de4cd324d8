"""BERT in plain torch with Hugging Face's parameter names, and its model folders."""
