"""Views of a model that share its weights, and the parts of it that drafters run: layers, embeddings, projection."""
