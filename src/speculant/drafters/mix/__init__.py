"""Mix: predictions from many contexts, combined into calibrated probabilities."""
