"""How time and memory grow with the length of the text and the size of the draft."""
