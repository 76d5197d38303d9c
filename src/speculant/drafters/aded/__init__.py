"""ADED: a tri-gram table that adapts to the target while it decodes."""
