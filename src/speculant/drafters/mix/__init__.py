"""Mix: many contexts at once, mixed into calibrated probabilities."""
