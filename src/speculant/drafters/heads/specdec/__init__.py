"""SpecDec: the head, its checkpoints and its training."""
