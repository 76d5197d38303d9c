"""Mix: predictions from many contexts, mixed into calibrated probabilities."""
