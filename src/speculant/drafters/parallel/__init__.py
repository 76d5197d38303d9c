"""Drafters in which the target itself guesses several positions at once: Jacobi decoding and Lookahead Decoding."""
