"""Engines, which run forward passes; one package each."""
