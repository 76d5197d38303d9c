"""Every option of the project, once: a field of a dataclass, from which all front ends derive."""
