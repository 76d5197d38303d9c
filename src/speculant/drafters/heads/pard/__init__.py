"""PARD models: the head, its checkpoints and its training."""
