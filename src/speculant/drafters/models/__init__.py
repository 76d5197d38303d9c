"""Drafters that run a draft model."""
