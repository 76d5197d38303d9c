"""Online distillation: a drafter learns from rejected drafts while it serves."""
