"""Training of heads and draft models on what their target writes."""
