"""MLP speculators: the head, its checkpoints and its training."""
