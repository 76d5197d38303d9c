"""Gemma 4's assistants: the head, its checkpoints and its training."""
