"""Draft models to train: how they are made, loaded and saved, and their recipe."""
