"""Trained heads: small networks that read the target's hidden states and draft what follows."""
