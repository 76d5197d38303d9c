"""How each kind of head is trained: one file per kind."""
