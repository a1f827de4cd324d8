"""The release as one transaction on the Hugging Face Hub."""
