"""Drafters that leave out decoder layers of the target."""
