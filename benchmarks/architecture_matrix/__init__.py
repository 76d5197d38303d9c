"""Every causal architecture of transformers, tiny and random, compared with its own `generate`."""
