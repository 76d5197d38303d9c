"""Sharing what memories learn between replicas: committed tokens go through a store that exists already."""
