"""BERT in plain torch under Hugging Face's parameter names, and the model folders it comes from and goes to."""
