"""Where forward passes happen, and how a target's own next token is drawn from them."""
