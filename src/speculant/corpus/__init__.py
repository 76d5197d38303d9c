"""Texts for memories and bases: finding, reading and encoding them, and building from them."""
