"""transformers models as targets."""
