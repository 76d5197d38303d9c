"""Where forward passes happen, one package per engine."""
