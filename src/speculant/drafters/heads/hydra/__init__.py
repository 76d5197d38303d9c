"""Hydra and Hydra++: the head, its checkpoints and its training."""
