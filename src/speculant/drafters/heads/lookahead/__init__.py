"""PaSS, look-ahead embeddings: the head, its checkpoints and its training."""
