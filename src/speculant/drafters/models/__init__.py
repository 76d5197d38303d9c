"""Drafters that are models."""
