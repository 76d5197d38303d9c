"""Views of a model that share its weights, and parts of it that drafters run: layers, embeddings, projection."""
