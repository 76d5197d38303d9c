"""Drafters that run the whole target on a part of its cache."""
