"""Measuring drafters: on recorded outputs without a model, and against other projects' packages."""
