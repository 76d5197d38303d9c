"""MTP layers: the head, its checkpoints and its training."""
