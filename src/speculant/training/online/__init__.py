"""Online distillation: a drafter learns, while it serves, from what its target rejected."""
