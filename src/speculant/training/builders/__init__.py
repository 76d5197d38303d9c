"""New heads for a target, with weights from which training starts well."""
