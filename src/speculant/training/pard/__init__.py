"""Creation, loading, saving and the training recipe of PARD models."""
