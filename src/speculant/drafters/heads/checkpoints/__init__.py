"""Checkpoints of heads: one file per public layout, which finds, loads and writes it."""
