"""Training of heads and draft models on text written by their target."""
