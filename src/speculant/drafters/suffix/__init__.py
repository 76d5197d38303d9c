"""Drafters over suffix indexes of the request, past requests and corpora."""
