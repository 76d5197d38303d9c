"""Shared parts of recipes for several kinds of heads: the contract, rows below anchors, initial weights."""
