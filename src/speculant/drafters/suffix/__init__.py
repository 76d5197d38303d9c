"""Drafters based on suffix indexes of the request, past requests and corpora."""
