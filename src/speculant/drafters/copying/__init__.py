"""Drafters that copy from the request itself."""
