"""What is looked at before the first stage starts: given inputs, the Hub, sizes and times."""
