"""Other kinds of caches (plain, replayed, sparse), and layers whose rows are written in place."""
