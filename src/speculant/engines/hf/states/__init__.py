"""Layers whose cache is a state instead of rows: recurrences and convolutions, verified as trees."""
