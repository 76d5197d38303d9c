"""Finds out which drafts a model can verify: by its class, by tiny models of it, and by the rows of its own passes."""
