"""Training of heads together with their model: a copy that learns, the recipe, what the training changed."""
