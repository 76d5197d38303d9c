"""DFlash and its descendants: the head, its checkpoints and its training."""
