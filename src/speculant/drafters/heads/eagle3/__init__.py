"""EAGLE-3: the head, its checkpoints and its training."""
