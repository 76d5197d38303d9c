"""How time and memory scale with the length of the text and the size of the draft."""
