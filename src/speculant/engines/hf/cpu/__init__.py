"""Compiled code for passes over the rows of a draft on CPUs."""
