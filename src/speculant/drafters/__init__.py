"""Drafters: everything that proposes tokens. Memory drafters need only numpy and numba, so they run in any engine."""
