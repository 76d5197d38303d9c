"""What can be verified on a model: by its class, by tiny models of it, and by the rows of its own passes."""
