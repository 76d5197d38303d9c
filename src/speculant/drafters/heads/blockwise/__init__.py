"""Blockwise heads: the head, its checkpoints and its training."""
