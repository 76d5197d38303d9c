"""Creation, loading, saving and the training recipe of draft models."""
