"""Sharing of learned memories between replicas: committed tokens are exchanged through an existing store."""
