"""Texts for memories and bases: where they are, how they are read and encoded, and what is built from them."""
