"""Layers that cache a state instead of rows: recurrences and convolutions, verified as trees."""
